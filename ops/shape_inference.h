// Shape functions from the rules of kernels/shape_rules.h.
#ifndef LATE_PHASE_OPS_SHAPE_INFERENCE_H_
#define LATE_PHASE_OPS_SHAPE_INFERENCE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/shape_rules.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {

// Checks the inputs against their rules, which are in the order of the signature; an input of
// unknown rank passes. Returns the sizes as far as they are known.
[[nodiscard]] inline absl::StatusOr<ShapeMatcher> MatchInputs(
    tensorflow::shape_inference::InferenceContext* c, const std::string& op,
    absl::Span<const ShapeRule> rules) {
  ShapeMatcher sizes(op);
  for (size_t i = 0; i < rules.size(); ++i) {
    if (!c->RankKnown(c->input(i))) continue;
    std::vector<int64_t> dims;
    for (int32_t d = 0; d < c->Rank(c->input(i)); ++d) {
      dims.push_back(c->Value(c->Dim(c->input(i), d)));
    }
    const std::string complaint = sizes.Match(rules[i], dims);
    if (!complaint.empty()) return absl::InvalidArgumentError(complaint);
  }
  return sizes;
}

// Sizes may be ShapeMatcher::kUnknown.
inline void SetOutput(tensorflow::shape_inference::InferenceContext* c, int index,
                      absl::Span<const int64_t> dims) {
  std::vector<tensorflow::shape_inference::DimensionHandle> handles;
  for (int64_t size : dims) handles.push_back(c->MakeDim(size));
  c->set_output(index, c->MakeShape(handles));
}

[[nodiscard]] inline absl::Status InferFromRules(tensorflow::shape_inference::InferenceContext* c,
                                                 const char* op, absl::Span<const ShapeRule> inputs,
                                                 absl::Span<const ShapeRule> outputs) {
  TF_ASSIGN_OR_RETURN(const ShapeMatcher sizes, MatchInputs(c, op, inputs));
  for (size_t i = 0; i < outputs.size(); ++i) SetOutput(c, i, sizes.Resolve(outputs[i].shape));
  return absl::OkStatus();
}

}  // namespace late_phase

#endif  // LATE_PHASE_OPS_SHAPE_INFERENCE_H_
