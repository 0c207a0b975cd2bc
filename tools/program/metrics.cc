#include "tools/program/metrics.h"

#include <cstdio>
#include <stdexcept>

#include "nlohmann/json.hpp"
#include "tools/program/metrics_text.h"

namespace late_phase {

std::string Column::Number(const std::map<std::string, double>& metrics) const {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, scale * metrics.at(metric));
  return text;
}

Column MetricColumn(const std::string& metric) {
  static const auto* const declared = new nlohmann::json(nlohmann::json::parse(kMetricsText));
  for (const nlohmann::json& one : *declared) {
    if (one.at("name") != metric) continue;
    return {metric, one.at("head"), one.at("digits"), one.at("unit"), one.at("scale")};
  }
  throw std::logic_error("python/late_phase_cli/metrics.json must declare " + metric);
}

Column ProgressColumn(const std::string& metric) {
  Column column = MetricColumn(metric);
  column.digits = 3;
  return column;
}

}  // namespace late_phase
