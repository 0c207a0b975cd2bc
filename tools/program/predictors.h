// What predicts: the networks that `eval --weights` names, and averages of their probabilities.
//
// Every network predicts a set of images once, however many averages it is part of. A new kind of
// weights is a case in AddNetworks.
#ifndef LATE_PHASE_TOOLS_PROGRAM_PREDICTORS_H_
#define LATE_PHASE_TOOLS_PROGRAM_PREDICTORS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/images/cifar.h"
#include "tools/program/evaluation.h"

namespace late_phase {

class Predictors {
 public:
  // The mean of some networks' probabilities; a row of the table.
  struct Predictor {
    std::string run, weights;
    size_t of_run;  // index of its run; of the first one if there are several
    // Index in networks_ -> what the network's probabilities are divided by.
    std::map<size_t, double> networks;
  };

  // `runs` must be runs of cifar and outlive the object. There is one predictor for each requested
  // weight set and each run; with `ensemble`, one more for each weight set, the mean over all runs,
  // by default of collapsed weights. Throws UsageError for weights that a run does not have, and
  // for runs that cannot be averaged. mc-dropout draws `samples` sets of masks, swag as many sets
  // of weights.
  Predictors(const std::vector<EvaluatedRun>& runs, const std::vector<std::string>& weights,
             bool ensemble, int64_t samples, int64_t seed);

  const std::vector<Predictor>& all() const { return predictors_; }
  size_t networks() const { return networks_.size(); }

  // The probabilities of each predictor. images_of(r): the images for run r. `progress` is called
  // after each network.
  std::vector<Probabilities> Predict(const std::function<ImageView(size_t)>& images_of,
                                     const std::function<void()>& progress) const;

 private:
  using PredictImages = std::function<absl::StatusOr<Probabilities>(const ImageView&)>;
  struct Network {
    size_t run;
    PredictImages predict;
  };

  std::vector<size_t> AddNetworks(size_t r, const std::string& weights);
  std::vector<size_t> Sampled(size_t r, const std::string& weights);
  size_t Add(size_t r, const std::string& name, const Prediction& how);
  size_t Add(size_t r, const std::string& name, PredictImages predict);

  const std::vector<EvaluatedRun>& runs_;
  const int64_t samples_, seed_;
  std::vector<Network> networks_;
  std::map<std::pair<size_t, std::string>, size_t> places_;  // (run, name) -> in networks_
  std::vector<Predictor> predictors_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_PREDICTORS_H_
