// How metrics are shown: their names, digits and units. They are declared once, for this program
// and for the driver, in python/late_phase_cli/metrics.json, which is built in.
#ifndef LATE_PHASE_TOOLS_PROGRAM_METRICS_H_
#define LATE_PHASE_TOOLS_PROGRAM_METRICS_H_

#include <map>
#include <string>

namespace late_phase {

// A metric as it is shown: "2.331 bpc", or in a column of a table.
struct Column {
  std::string metric;  // its name among a model's numbers
  std::string head;    // "BPC"
  int digits;          // after the decimal point
  std::string unit;    // " bpc"
  double scale = 1;    // 100 for percentages

  std::string Number(const std::map<std::string, double>& metrics) const;  // "2.331"
  std::string Text(const std::map<std::string, double>& metrics) const {
    return Number(metrics) + unit;
  }
};

// The metric as declared. REQUIRES: `metric` is declared.
Column MetricColumn(const std::string& metric);

// The same with fewer digits, for a line that changes all the time.
Column ProgressColumn(const std::string& metric);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_METRICS_H_
