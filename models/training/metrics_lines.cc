#include "models/training/metrics_lines.h"

#include <sstream>

#include "nlohmann/json.hpp"

namespace late_phase {

KeptLines KeepLines(const std::string& text, int64_t step, bool trained) {
  KeptLines kept;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) continue;
    const auto number = object.find("step");
    if (number == object.end() || !number->is_number_integer()) continue;
    const auto at = number->get<int64_t>();
    if (at < 0 || at > step) continue;
    if (trained && at == step && object.value("kind", nlohmann::json()) != "train") continue;
    const auto seconds = object.find("seconds");
    if (seconds != object.end() && seconds->is_number()) kept.seconds = seconds->get<double>();
    kept.text += line + "\n";
  }
  return kept;
}

}  // namespace late_phase
