#include "models/training/memory.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_format.h"

namespace late_phase {
namespace {

// TensorFlow's code and tables, thread stacks, the graph.
constexpr double kProcess = 450e6;

}  // namespace

double TrainingBytes(const TrainingNumbers& numbers, const LatePhaseOptions& options,
                     double number_bytes, double data_bytes) {
  const double K = static_cast<double>(options.members);
  const double cycle = static_cast<double>(std::max(options.cycle, options.members));
  const double weights = numbers.base + K * numbers.members;
  double variables = (1 + numbers.slots) * weights;
  if (cycle > 1) variables += numbers.base;  // sums
  if (options.swa_start >= 0) variables += weights;
  // In a step: a copy of the member's rows, what the backward pass needs, and the gradients.
  double transient = numbers.members + numbers.minibatch + numbers.base + numbers.members;
  // An evaluation sums the members' gradients in double precision to compare them.
  if (K > 1) transient += sizeof(double) / number_bytes * numbers.base;
  // Spawning allocates new slots, most of them (measured) before the old ones are freed.
  if (K > 1) transient = std::max(transient, 0.93 * numbers.slots * K * numbers.members);
  if (options.swag_rank > 0) {
    const double deviations = static_cast<double>(options.swag_rank) * weights;
    variables += weights + deviations;
    // A sample takes a few arrays of temporaries, a checkpoint is written from a copy.
    transient = std::max(transient, 5 * weights + deviations);
  }
  return kProcess + data_bytes + number_bytes * (variables + transient);
}

absl::Status CheckFitsMemory(double bytes, const std::string& received) {
  const double there = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  if (bytes < there) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "the network must fit into memory: it needs about %.3g GB, this machine has %.3g GB. "
      "Received: %s",
      bytes / 1e9, there / 1e9, received));
}

}  // namespace late_phase
