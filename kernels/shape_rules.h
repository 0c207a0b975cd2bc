// Shapes written once, as text, and checked the same way when a graph is built and when an op runs.
//
// A rule is a name and a shape such as "[time, batch, 4*units]". A word stands for a size: its
// first appearance among an op's rules sets it, later ones must agree. "K>=1" sets K and forbids
// zero. "[]" is a scalar. "[n, units] or [n, time, units]" allows either, by rank. Sizes
// unknown while a graph is being built are skipped. No TensorFlow here: ops/shape_inference.h and
// kernels/op_kernel/inputs.h supply the shapes.
#ifndef LATE_PHASE_KERNELS_SHAPE_RULES_H_
#define LATE_PHASE_KERNELS_SHAPE_RULES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace late_phase {

struct ShapeRule {
  const char* name;   // as in the op's signature
  const char* shape;  // "[time, batch, 4*units]"
};

class ShapeMatcher {
 public:
  static constexpr int64_t kUnknown = -1;

  // `op` begins every message.
  explicit ShapeMatcher(std::string_view op) : op_(op) {}

  // Checks `dims` against the rule. Returns an error message, or an empty string.
  [[nodiscard]] std::string Match(const ShapeRule& rule, const std::vector<int64_t>& dims);

  // The size a word stands for so far, or kUnknown.
  int64_t operator[](std::string_view word) const;

  // A shape text with its words replaced by sizes.
  std::vector<int64_t> Resolve(std::string_view shape) const;

 private:
  std::string op_;
  std::vector<std::pair<std::string, int64_t>> sizes_;
};

// "[3,28]", with "?" for unknown.
std::string ShapeText(const std::vector<int64_t>& dims);

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_SHAPE_RULES_H_
