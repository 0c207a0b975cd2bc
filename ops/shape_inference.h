// Shape functions from the rules of kernels/shape_rules.h.
#ifndef LATE_PHASE_OPS_SHAPE_INFERENCE_H_
#define LATE_PHASE_OPS_SHAPE_INFERENCE_H_

#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/shape_rules.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace late_phase {

// Holds the inputs against their rules, which are in the order of the signature; an input of
// unknown rank passes.
template <typename Rules>
absl::Status MatchInputs(tensorflow::shape_inference::InferenceContext* c, const Rules& rules,
                         ShapeMatcher* sizes) {
  for (size_t i = 0; i < std::size(rules); ++i) {
    if (!c->RankKnown(c->input(i))) continue;
    std::vector<int64_t> dims;
    for (int32_t d = 0; d < c->Rank(c->input(i)); ++d) {
      dims.push_back(c->Value(c->Dim(c->input(i), d)));
    }
    const std::string complaint = sizes->Match(rules[i], dims);
    if (!complaint.empty()) return absl::InvalidArgumentError(complaint);
  }
  return absl::OkStatus();
}

// Sets output `index` to a shape text with the sizes known so far.
inline void SetOutput(tensorflow::shape_inference::InferenceContext* c, int index,
                      const std::vector<int64_t>& dims) {
  std::vector<tensorflow::shape_inference::DimensionHandle> handles;
  for (int64_t size : dims) handles.push_back(c->MakeDim(size));
  c->set_output(index, c->MakeShape(handles));
}

template <size_t kInputs, size_t kOutputs>
absl::Status InferFromRules(tensorflow::shape_inference::InferenceContext* c, const char* op,
                            const ShapeRule (&inputs)[kInputs],
                            const ShapeRule (&outputs)[kOutputs]) {
  ShapeMatcher sizes(op);
  if (absl::Status status = MatchInputs(c, inputs, &sizes); !status.ok()) return status;
  for (size_t i = 0; i < kOutputs; ++i) SetOutput(c, i, sizes.Resolve(outputs[i].shape));
  return absl::OkStatus();
}

}  // namespace late_phase

#endif  // LATE_PHASE_OPS_SHAPE_INFERENCE_H_
