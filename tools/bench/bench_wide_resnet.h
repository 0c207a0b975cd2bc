// Training steps of a WRN 16-2 for tools/latephase bench batchnorm: with our BatchNorm and one
// member, the same again, with ten members, and with TensorFlow's BatchNorm.
#ifndef LATE_PHASE_TOOLS_BENCH_BENCH_WIDE_RESNET_H_
#define LATE_PHASE_TOOLS_BENCH_BENCH_WIDE_RESNET_H_

#include <cstdint>

namespace late_phase {

// Checks that ours and TensorFlow's train alike, then times rounds of one step each, the order
// changing from round to round. Prints {"difference": D, "rounds": [[seconds of K = 1, of K = 1
// again, of K = 10, of TensorFlow's], …]}. Returns an exit status.
int BenchWideResNet(int64_t rounds);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_BENCH_BENCH_WIDE_RESNET_H_
