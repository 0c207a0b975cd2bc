// The rank-1 LSTM over a whole sequence, forward and backward, for one member. Core: no TensorFlow,
// no threads of its own.
//
//   z_t = x_t W + b + ((h_{t−1} ∘ u) R) ∘ v      then the gates of kernels/cpu/lstm_gates.h
//
// T steps (time), N sequences (batch), C inputs, H units. The rank-1 factors are folded into the
// recurrent matrix once per call, R∘uvᵀ, so a step costs the same as a plain LSTM's, which is the
// case u = v = 1.
//
// The input part x_t W + b comes in two forms:
//   dense    x [T,N,C], kernel W [C,4·H], bias b [4·H]
//   tokens   tokens [T,N] in [0, C), table [C,4·H] whose row c is what symbol c adds to z: no
//   product at all
//
// The OpKernels, which check every argument, are in kernels/rank1_lstm_op.cc.
//
// A Gpu function is its Cpu twin on a stream: arrays are in device memory, and it returns before
// they are written, empty or with an error message. Tokens, which have not been checked there, may
// be out of range: such a token reads nothing, makes its sequence NaN from its step on, and adds to
// no row of dtable.
#ifndef LATE_PHASE_KERNELS_RANK1_LSTM_H_
#define LATE_PHASE_KERNELS_RANK1_LSTM_H_

#include <cstdint>
#include <string>

#include "kernels/cpu/parallel.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/stream.h"

namespace late_phase {

struct Rank1LstmShape {
  int64_t T, N, C, H;
};

enum class LstmInputForm { kDense, kTokens };

// The pointers of the other form are null; those of empty arrays may be null, too.
template <typename Scalar>
struct Rank1LstmInput {
  LstmInputForm form;
  const Scalar* x = nullptr;        // [T,N,C]
  const Scalar* kernel = nullptr;   // [C,4·H]
  const Scalar* bias = nullptr;     // [4·H]; the backward pass does not read it
  const int32_t* tokens = nullptr;  // [T,N], every value in [0, C)
  const Scalar* table = nullptr;    // [C,4·H]; the backward pass does not read it
};

template <typename Scalar>
struct Rank1LstmForwardArgs {
  Rank1LstmShape shape;
  Rank1LstmInput<Scalar> input;
  const Scalar* initial_h;         // [N,H]
  const Scalar* initial_c;         // [N,H]
  const Scalar* recurrent_kernel;  // [H,4·H]
  const Scalar* u;                 // [H], the member's row
  const Scalar* v;                 // [4·H], the member's row
  Scalar* h;                       // [T,N,H] out
  Scalar* final_h;                 // [N,H] out
  Scalar* final_c;                 // [N,H] out
  Scalar* gates;      // [T,N,4·H] out, for the backward pass; null: inference, nothing is kept
  Scalar* cells;      // [T,N,H] out, c after each step; null with gates
  Scalar* workspace;  // scratch of Rank1LstmForwardWorkspace elements
};

template <typename Scalar>
struct Rank1LstmBackwardArgs {
  Rank1LstmShape shape;
  Rank1LstmInput<Scalar> input;
  const Scalar* initial_h;         // [N,H]
  const Scalar* initial_c;         // [N,H]
  const Scalar* recurrent_kernel;  // [H,4·H]
  const Scalar* u;                 // [H]
  const Scalar* v;                 // [4·H]
  const Scalar* h;                 // [T,N,H] as the forward pass wrote it
  const Scalar* cells;             // [T,N,H] as the forward pass wrote it
  Scalar* gates;     // [T,N,4·H] as the forward pass wrote it; OVERWRITTEN by the gradient of z
  const Scalar* dh;  // [T,N,H]
  const Scalar* dfinal_h;     // [N,H]
  const Scalar* dfinal_c;     // [N,H]
  Scalar* dx;                 // [T,N,C] out; dense input only
  Scalar* dkernel;            // [C,4·H] out; dense input only
  Scalar* dbias;              // [4·H] out; dense input only
  Scalar* dtable;             // [C,4·H] out; token input only
  Scalar* dinitial_h;         // [N,H] out
  Scalar* dinitial_c;         // [N,H] out
  Scalar* drecurrent_kernel;  // [H,4·H] out
  Scalar* du;                 // [H] out, the member's row
  Scalar* dv;                 // [4·H] out, the member's row
  Scalar* workspace;          // scratch of Rank1LstmBackwardWorkspace elements
};

// Elements of scratch, the same for any number of threads.
int64_t Rank1LstmForwardWorkspace(const Rank1LstmShape& shape, LstmInputForm form, bool training);
int64_t Rank1LstmBackwardWorkspace(const Rank1LstmShape& shape, LstmInputForm form);

// Outputs may not overlap inputs or each other. The same thread count gives the same bits; another
// one differs by rounding.
template <typename Scalar>
void Rank1LstmForwardCpu(const Rank1LstmForwardArgs<Scalar>& args, const Parallel& parallel);
template <typename Scalar>
void Rank1LstmBackwardCpu(const Rank1LstmBackwardArgs<Scalar>& args, const Parallel& parallel);

int64_t Rank1LstmForwardWorkspaceGpu(const Rank1LstmShape& shape, LstmInputForm form,
                                     bool training);
int64_t Rank1LstmBackwardWorkspaceGpu(const Rank1LstmShape& shape, LstmInputForm form);

// The same bits in every run on the same GPU.
template <typename Scalar>
[[nodiscard]] std::string Rank1LstmForwardGpu(const Rank1LstmForwardArgs<Scalar>& args,
                                              CudaStream stream, const CudaMatmul& matmul);
template <typename Scalar>
[[nodiscard]] std::string Rank1LstmBackwardGpu(const Rank1LstmBackwardArgs<Scalar>& args,
                                               CudaStream stream, const CudaMatmul& matmul);

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_RANK1_LSTM_H_
