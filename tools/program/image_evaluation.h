// The evaluation of image networks: predictions of every weight set of every run, their metrics on
// the run's own images, on others (out of distribution) and on corrupted ones, and the flatness of
// the loss around the weights.
#ifndef LATE_PHASE_TOOLS_PROGRAM_IMAGE_EVALUATION_H_
#define LATE_PHASE_TOOLS_PROGRAM_IMAGE_EVALUATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "models/training/trainer.h"
#include "tools/program/evaluation.h"

namespace late_phase {

// What is asked for.
struct ImageEvaluationOptions {
  std::string split = "test";
  std::vector<std::string> weights;  // empty: all that a run has
  bool ensemble = false;             // the runs' predictions averaged, too
  std::vector<std::string> ood;      // paths (models/images/image_set.h)
  std::string corrupt;               // folder (models/images/corrupted_images.h); empty: none
  std::vector<double> flatness;      // σ; empty: not measured
  std::string flatness_split = "training";
  int64_t flatness_images = 10000;  // the first ones
  int64_t samples = 10;             // draws of mc-dropout, of swag and of the flatness
  int64_t seed = 0;                 // of the draws
};

struct ImageEvaluation {
  std::vector<Column> columns;  // of what goes beyond the program's own
  std::vector<EvaluationRow> rows;
  Json details = Json::object();  // of evaluation.json, beside the rows
  std::string below;              // text below the table: what it does not say, and further tables
};

// Throws UsageError for what the user can mend, before anything is computed.
ImageEvaluation EvaluateImages(const std::vector<EvaluatedRun>& runs,
                               const ImageEvaluationOptions& options);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_IMAGE_EVALUATION_H_
