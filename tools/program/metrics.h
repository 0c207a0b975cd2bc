// How metrics are shown: their names, digits and units. They are declared once, for this program
// and for the driver, in python/late_phase_cli/metrics.json, which is built in.
#ifndef LATE_PHASE_TOOLS_PROGRAM_METRICS_H_
#define LATE_PHASE_TOOLS_PROGRAM_METRICS_H_

#include <map>
#include <string>

namespace late_phase {

// A metric as it is shown: "2.331 bpc", or below a head of a table.
struct Column {
  std::string metric;  // its name in the numbers of a model
  std::string head;    // "BPC"
  int digits;          // behind the point
  std::string unit;    // " bpc"
  double scale = 1;    // 100 for shares in percent

  std::string Number(const std::map<std::string, double>& metrics) const;  // "2.331"
  std::string Text(const std::map<std::string, double>& metrics) const {
    return Number(metrics) + unit;
  }
};

// As it is declared. REQUIRES: `metric` is declared.
Column MetricColumn(const std::string& metric);

// With fewer digits, for a line that changes all the time.
Column ProgressColumn(const std::string& metric);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_METRICS_H_
