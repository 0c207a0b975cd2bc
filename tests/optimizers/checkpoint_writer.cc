// Writes one checkpoint after the other until it is killed, each with tensors equal to its step:
// what tests/optimizers/checkpoint_test.cc kills. Usage: checkpoint_writer DIR
#include "optimizers/checkpoint.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  for (int64_t step = 1;; ++step) {
    late_phase::CheckpointState state{step, {}, {}, 1};
    for (const char* name : {"a", "b", "c"}) {
      tensorflow::Tensor tensor(tensorflow::DT_DOUBLE, {100000});
      tensor.flat<double>().setConstant(static_cast<double>(step));
      state.variables[name] = tensor;
    }
    if (!late_phase::WriteCheckpoint(argv[1], state).ok()) return 1;
  }
}
