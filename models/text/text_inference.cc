#include "models/text/text_inference.h"

#include <map>
#include <vector>

#include "optimizers/tensors.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;
using tensorflow::Tensor;

TextInference::TextInference(const CharLstmOptions& network, tensorflow::DataType dtype,
                             WeightSet set, LatePhase* weights)
    : units_(network.units), dtype_(dtype), set_(set) {
  const tensorflow::Scope& scope = weights->scope();
  auto fed = [&](const char* what, tensorflow::DataType type, std::string* name) -> Output {
    const auto placeholder =
        tf_ops::Placeholder(scope.WithOpName(WeightSetName(set), "/", what), type);
    if (scope.ok()) *name = placeholder.node()->name();
    return placeholder;
  };
  const Output member = fed("member", tensorflow::DT_INT32, &member_);
  std::map<std::string, Output> read;
  for (const CharLstmWeight& weight : CharLstmWeights(network)) {
    Output value = weights->Read(weight.name, set, member);
    // A read gives one row, where the network may take a stack.
    if (weight.late_phase && !network.whole_kernel) value = tf_ops::ExpandDims(scope, value, 0);
    read[weight.name] = value;
  }
  const Output tokens = fed("tokens", tensorflow::DT_INT32, &tokens_),
               labels = fed("labels", tensorflow::DT_INT32, &labels_), h = fed("h", dtype, &h_),
               c = fed("c", dtype, &c_);
  const CharLstm lstm(scope, network, read, 0, tokens, labels, h, c, /*is_training=*/false);
  if (!scope.ok()) return;
  losses_ = lstm.losses.name();
  logits_ = lstm.logits.name();
  final_h_ = lstm.final_h.name();
  final_c_ = lstm.final_c.name();
}

TextInference::State TextInference::Start(int64_t streams) const {
  const Tensor zeros = Zeros(dtype_, {streams, units_});
  return {zeros, zeros};
}

absl::StatusOr<Tensor> TextInference::Advance(Run* run, const std::string& fetch,
                                              const Tensor& tokens, const Tensor& labels,
                                              int32_t member, State* state) const {
  Tensor which(tensorflow::DT_INT32, {});
  which.scalar<int32_t>()() = member;
  TF_ASSIGN_OR_RETURN(
      std::vector<Tensor> outputs,
      run->Evaluate(
          set_,
          {{tokens_, tokens}, {labels_, labels}, {h_, state->h}, {c_, state->c}, {member_, which}},
          {fetch, final_h_, final_c_}));
  *state = {outputs[1], outputs[2]};
  return outputs[0];
}

absl::StatusOr<Tensor> TextInference::Losses(Run* run, const Tensor& tokens, const Tensor& labels,
                                             int32_t member, State* state) const {
  return Advance(run, losses_, tokens, labels, member, state);
}

absl::StatusOr<Tensor> TextInference::Logits(Run* run, const Tensor& tokens, State* state) const {
  return Advance(run, logits_, tokens, Zeros(tensorflow::DT_INT32, tokens.shape()), /*member=*/0,
                 state);
}

}  // namespace late_phase
