// The character LSTM with a set of a run's weights, its state fed and fetched.
#ifndef LATE_PHASE_MODELS_TEXT_TEXT_INFERENCE_H_
#define LATE_PHASE_MODELS_TEXT_TEXT_INFERENCE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "models/text/char_lstm.h"
#include "optimizers/late_phase.h"
#include "optimizers/run.h"
#include "tensorflow/core/framework/tensor.h"

namespace late_phase {

class TextInference {
 public:
  // Adds the network to the graph; errors end in the scope's status.
  TextInference(const CharLstmOptions& network, tensorflow::DataType dtype, WeightSet set,
                LatePhase* weights);

  // What the network remembers of the text so far, [streams, units].
  struct State {
    tensorflow::Tensor h, c;
  };
  State Start(int64_t streams) const;

  // tokens, labels: int32 [time, streams]. `state` is read and then written. `member` is used by
  // WeightSet::kCurrent.
  //
  // The losses [time·streams], −ln p(label).
  absl::StatusOr<tensorflow::Tensor> Losses(Run* run, const tensorflow::Tensor& tokens,
                                            const tensorflow::Tensor& labels, int32_t member,
                                            State* state) const;
  // The logits [time·streams, vocabulary].
  absl::StatusOr<tensorflow::Tensor> Logits(Run* run, const tensorflow::Tensor& tokens,
                                            State* state) const;

 private:
  absl::StatusOr<tensorflow::Tensor> Advance(Run* run, const std::string& fetch,
                                             const tensorflow::Tensor& tokens,
                                             const tensorflow::Tensor& labels, int32_t member,
                                             State* state) const;

  int64_t units_;
  tensorflow::DataType dtype_;
  WeightSet set_;
  std::string tokens_, labels_, h_, c_, member_;     // fed
  std::string losses_, logits_, final_h_, final_c_;  // fetched
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_TEXT_TEXT_INFERENCE_H_
