// The point-wise half of an LSTM step, forward and backward: everything but the matrix products, in
// one pass over memory.
//
// H units; a row of z, or of the gates, is [4·H]: the blocks i, f, g, o one after the other
// (Keras's order).
//   i = σ(z_i)  f = σ(z_f)  g = tanh(z_g)  o = σ(z_o)
//   c' = f ∘ c + i ∘ g
//   h' = o ∘ tanh(c')
// NaN propagates, so that a diverged run shows in its loss.
#ifndef LATE_PHASE_KERNELS_CPU_LSTM_GATES_H_
#define LATE_PHASE_KERNELS_CPU_LSTM_GATES_H_

#include <cstdint>

namespace late_phase {

// Offsets, in units of H, of the gates inside a row.
enum class Gate : int { kInput = 0, kForget = 1, kCell = 2, kOutput = 3 };

template <typename T>
struct LstmGatesForwardArgs {
  int64_t rows;  // of every array below; all arrays are dense
  int64_t H;
  T* z;             // [rows, 4·H] pre-activations, except for what `input` adds
  bool keep_gates;  // overwrite z with the gates; otherwise z is unchanged
  const T* input;  // [·, 4·H]: row tokens[n] is added to row n of z, or row 0, the bias, if tokens
                   // is null
  const int32_t* tokens;  // [rows] or null
  const T* c_prev;        // [rows, H]
  T* c;                   // [rows, H] out; may be c_prev itself
  T* h;                   // [rows, H] out
};

template <typename T>
void LstmGatesForward(const LstmGatesForwardArgs<T>& args);

template <typename T>
struct LstmGatesBackwardArgs {
  int64_t rows;
  int64_t H;
  T* gates;         // [rows, 4·H] in: what the forward pass kept; out: the gradient of z
  const T* c_prev;  // [rows, H]
  const T* c;       // [rows, H]
  const T* dh_out;  // [rows, H] gradient of h from the layer's output
  const T* dh_rec;  // [rows, H] gradient of h from the next time step; added to dh_out
  T* dc;            // [rows, H] in: gradient of c from the next time step; out: gradient of c_prev
};

template <typename T>
void LstmGatesBackward(const LstmGatesBackwardArgs<T>& args);

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_CPU_LSTM_GATES_H_
