#include "kernels/shape_rules.h"

#include <algorithm>

namespace late_phase {
namespace {

// One size of a rule: factor·word, at least `least`.
struct Term {
  int64_t factor = 1;
  std::string_view word;
  int64_t least = 0;
};

// `shape` is a single shape, without "or".
std::vector<Term> Parse(std::string_view shape) {
  std::vector<Term> terms;
  shape = shape.substr(1, shape.size() - 2);  // without the brackets
  while (!shape.empty()) {
    const size_t comma = shape.find(", ");
    Term term;
    term.word = shape.substr(0, comma);
    if (const size_t star = term.word.find('*'); star != std::string_view::npos) {
      term.factor = term.word[0] - '0';
      term.word.remove_prefix(star + 1);
    }
    if (const size_t bound = term.word.find(">="); bound != std::string_view::npos) {
      term.least = term.word[bound + 2] - '0';
      term.word = term.word.substr(0, bound);
    }
    terms.push_back(term);
    shape = comma == std::string_view::npos ? std::string_view() : shape.substr(comma + 2);
  }
  return terms;
}

// "A or B or C": each by itself.
std::vector<std::vector<Term>> ParseAlternatives(std::string_view shapes) {
  constexpr std::string_view kOr = " or ";
  std::vector<std::vector<Term>> alternatives;
  for (size_t end = shapes.find(kOr); end != std::string_view::npos; end = shapes.find(kOr)) {
    alternatives.push_back(Parse(shapes.substr(0, end)));
    shapes.remove_prefix(end + kOr.size());
  }
  alternatives.push_back(Parse(shapes));
  return alternatives;
}

}  // namespace

std::string ShapeText(const std::vector<int64_t>& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) text += ",";
    text += dims[i] == ShapeMatcher::kUnknown ? "?" : std::to_string(dims[i]);
  }
  return text + "]";
}

int64_t ShapeMatcher::operator[](std::string_view word) const {
  for (const auto& [known, size] : sizes_) {
    if (known == word) return size;
  }
  return kUnknown;
}

std::vector<int64_t> ShapeMatcher::Resolve(std::string_view shape) const {
  std::vector<int64_t> dims;
  for (const Term& term : Parse(shape)) {
    const int64_t size = (*this)[term.word];
    dims.push_back(size == kUnknown ? kUnknown : term.factor * size);
  }
  return dims;
}

std::string ShapeMatcher::Match(const ShapeRule& rule, const std::vector<int64_t>& dims) {
  const std::vector<std::vector<Term>> alternatives = ParseAlternatives(rule.shape);
  auto complaint = [&] {
    const std::string_view shape = rule.shape;
    std::string text = op_ + ": `" + rule.name + "` must be " +
                       (shape == "[]" ? std::string("a scalar") : std::string(shape));
    // What is already known about the words, so that the reader need not work it out.
    std::string known;
    for (const std::vector<Term>& terms : alternatives) {
      for (const Term& term : terms) {
        const std::string fact = std::string(term.word) + "=" + std::to_string((*this)[term.word]);
        if ((*this)[term.word] == kUnknown || known.find(fact) != std::string::npos) continue;
        known += (known.empty() ? " with " : ", ") + fact;
      }
    }
    return text + known + ". Received: shape=" + ShapeText(dims);
  };
  const auto chosen =
      std::find_if(alternatives.begin(), alternatives.end(),
                   [&](const std::vector<Term>& terms) { return terms.size() == dims.size(); });
  if (chosen == alternatives.end()) return complaint();
  const std::vector<Term>& terms = *chosen;
  ShapeMatcher after = *this;  // a refused shape sets nothing
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == kUnknown) continue;
    const Term& term = terms[i];
    const int64_t size = dims[i] / term.factor;
    if (dims[i] % term.factor != 0 || size < term.least) return complaint();
    const int64_t known = after[term.word];
    if (known != kUnknown && known != size) return complaint();
    if (known == kUnknown) after.sizes_.emplace_back(term.word, size);
  }
  sizes_ = std::move(after.sizes_);
  return "";
}

}  // namespace late_phase
