// The loops are compiled once per instruction set: foreach_target.h includes this file again for
// each.
#include "kernels/cpu/lstm_gates.h"

#include <algorithm>

#include "kernels/cpu/cpu_target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/lstm_gates.cc"
// foreach_target.h comes first
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace late_phase {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Highway's Exp and Tanh turn NaN into a number.
template <class V>
V KeepNaN(V x, V result) {
  return hn::IfThenElse(hn::IsNaN(x), x, result);
}

// 1/x for a normal x. One Newton step on the hardware's estimate (12 or 14 bits) gives a float to
// its last bit or two, at a third of a division's time; the five divisions per unit would take half
// of the forward pass.
template <class D, class V>
V Reciprocal(D d, V x) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    const V estimate = hn::ApproximateReciprocal(x);
    return hn::Mul(estimate, hn::NegMulAdd(x, estimate, hn::Set(d, 2.0f)));
  } else {
    return hn::Div(hn::Set(d, 1.0), x);
  }
}

// σ(x) = 1 / (1 + e^−x)
template <class D, class V>
V Sigmoid(D d, V x) {
  using T = hn::TFromD<D>;
  // e^limit is finite and its inverse, the smallest value returned, is a normal number.
  const V limit = hn::Set(d, sizeof(T) == 4 ? T(86) : T(700));
  const V e = hn::Exp(d, hn::Min(hn::Neg(x), limit));
  return KeepNaN(x, Reciprocal(d, hn::Add(e, hn::Set(d, T(1)))));
}

// tanh|x| = y / (y + 2) with y = e^2|x| − 1, whose relative error stays small where x does.
template <class D, class V>
V HyperbolicTangent(D d, V x) {
  using T = hn::TFromD<D>;
  // Beyond it tanh is 1 to the last bit, and y still finite.
  const V size = hn::Min(hn::Abs(x), hn::Set(d, T(20)));
  const V y = hn::Expm1(d, hn::Add(size, size));
  return KeepNaN(x, hn::CopySign(hn::Mul(y, Reciprocal(d, hn::Add(y, hn::Set(d, T(2))))), x));
}

// One vector of units: reads at the given addresses, writes in place. `H` is the distance between
// the gates of a row.
template <class D, typename T>
HWY_INLINE void ForwardUnits(D d, T* z, const T* input, int64_t H, bool keep_gates, const T* c_prev,
                             T* c, T* h) {
  auto sum = [&](int64_t at)
                 HWY_ATTR { return hn::Add(hn::LoadU(d, z + at), hn::LoadU(d, input + at)); };
  const auto i = Sigmoid(d, sum(0));
  const auto f = Sigmoid(d, sum(H));
  const auto g = HyperbolicTangent(d, sum(2 * H));
  const auto o = Sigmoid(d, sum(3 * H));
  const auto new_c = hn::MulAdd(f, hn::LoadU(d, c_prev), hn::Mul(i, g));
  hn::StoreU(new_c, d, c);
  hn::StoreU(hn::Mul(o, HyperbolicTangent(d, new_c)), d, h);
  if (!keep_gates) return;
  hn::StoreU(i, d, z);
  hn::StoreU(f, d, z + H);
  hn::StoreU(g, d, z + 2 * H);
  hn::StoreU(o, d, z + 3 * H);
}

template <class D, typename T>
HWY_INLINE void BackwardUnits(D d, T* gates, int64_t H, const T* c_prev, const T* c,
                              const T* dh_out, const T* dh_rec, T* dc) {
  const auto one = hn::Set(d, T(1));
  const auto i = hn::LoadU(d, gates), f = hn::LoadU(d, gates + H);
  const auto g = hn::LoadU(d, gates + 2 * H), o = hn::LoadU(d, gates + 3 * H);
  const auto dh = hn::Add(hn::LoadU(d, dh_out), hn::LoadU(d, dh_rec));
  const auto tanh_c = HyperbolicTangent(d, hn::LoadU(d, c));
  // dc' = dc + dh ∘ o ∘ (1 − tanh² c)
  const auto dct = hn::MulAdd(hn::Mul(dh, o), hn::NegMulAdd(tanh_c, tanh_c, one), hn::LoadU(d, dc));
  // σ' = σ (1 − σ), tanh' = 1 − tanh²
  const auto di = hn::Mul(hn::Mul(dct, g), hn::Mul(i, hn::Sub(one, i)));
  const auto df = hn::Mul(hn::Mul(dct, hn::LoadU(d, c_prev)), hn::Mul(f, hn::Sub(one, f)));
  const auto dg = hn::Mul(hn::Mul(dct, i), hn::NegMulAdd(g, g, one));
  const auto dout = hn::Mul(hn::Mul(dh, tanh_c), hn::Mul(o, hn::Sub(one, o)));
  hn::StoreU(di, d, gates);
  hn::StoreU(df, d, gates + H);
  hn::StoreU(dg, d, gates + 2 * H);
  hn::StoreU(dout, d, gates + 3 * H);
  hn::StoreU(hn::Mul(dct, f), d, dc);
}

// The units left over at a row's end (fewer than a vector) go through buffers of one vector each:
// the same instructions, hence the same rounding, and nothing is read or written past the row. Gate
// buffers lie kMaxLanes apart, as gates of a row lie H apart.
constexpr int64_t kMaxLanes = 16;

template <typename T>
void ForwardTail(int64_t count, T* z, const T* input, int64_t H, bool keep_gates, const T* c_prev,
                 T* c, T* h) {
  T gates[4 * kMaxLanes] = {}, in[4 * kMaxLanes] = {}, cell[kMaxLanes] = {}, out[kMaxLanes];
  for (int gate = 0; gate < 4; ++gate) {
    std::copy_n(z + gate * H, count, gates + gate * kMaxLanes);
    std::copy_n(input + gate * H, count, in + gate * kMaxLanes);
  }
  std::copy_n(c_prev, count, cell);
  ForwardUnits(hn::ScalableTag<T>(), gates, in, kMaxLanes, keep_gates, cell, cell, out);
  for (int gate = 0; gate < 4 && keep_gates; ++gate) {
    std::copy_n(gates + gate * kMaxLanes, count, z + gate * H);
  }
  std::copy_n(cell, count, c);
  std::copy_n(out, count, h);
}

template <typename T>
void BackwardTail(int64_t count, T* gates, int64_t H, const T* c_prev, const T* c, const T* dh_out,
                  const T* dh_rec, T* dc) {
  T z[4 * kMaxLanes] = {}, before[kMaxLanes] = {}, after[kMaxLanes] = {};
  T out[kMaxLanes] = {}, rec[kMaxLanes] = {}, cell[kMaxLanes] = {};
  for (int gate = 0; gate < 4; ++gate) std::copy_n(gates + gate * H, count, z + gate * kMaxLanes);
  std::copy_n(c_prev, count, before);
  std::copy_n(c, count, after);
  std::copy_n(dh_out, count, out);
  std::copy_n(dh_rec, count, rec);
  std::copy_n(dc, count, cell);
  BackwardUnits(hn::ScalableTag<T>(), z, kMaxLanes, before, after, out, rec, cell);
  for (int gate = 0; gate < 4; ++gate) std::copy_n(z + gate * kMaxLanes, count, gates + gate * H);
  std::copy_n(cell, count, dc);
}

template <typename T>
void GatesForward(const LstmGatesForwardArgs<T>& a) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = hn::Lanes(d), H = a.H, whole = H / lanes * lanes;
  for (int64_t row = 0; row < a.rows; ++row) {
    T* z = a.z + row * 4 * H;
    const T* input = a.input + (a.tokens == nullptr ? 0 : int64_t{a.tokens[row]} * 4 * H);
    const T* c_prev = a.c_prev + row * H;
    T *c = a.c + row * H, *h = a.h + row * H;
    for (int64_t j = 0; j < whole; j += lanes) {
      ForwardUnits(d, z + j, input + j, H, a.keep_gates, c_prev + j, c + j, h + j);
    }
    if (whole < H) {
      ForwardTail(H - whole, z + whole, input + whole, H, a.keep_gates, c_prev + whole, c + whole,
                  h + whole);
    }
  }
}

template <typename T>
void GatesBackward(const LstmGatesBackwardArgs<T>& a) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = hn::Lanes(d), H = a.H, whole = H / lanes * lanes;
  for (int64_t row = 0; row < a.rows; ++row) {
    T* gates = a.gates + row * 4 * H;
    const T *c_prev = a.c_prev + row * H, *c = a.c + row * H;
    const T *dh_out = a.dh_out + row * H, *dh_rec = a.dh_rec + row * H;
    T* dc = a.dc + row * H;
    for (int64_t j = 0; j < whole; j += lanes) {
      BackwardUnits(d, gates + j, H, c_prev + j, c + j, dh_out + j, dh_rec + j, dc + j);
    }
    if (whole < H) {
      BackwardTail(H - whole, gates + whole, H, c_prev + whole, c + whole, dh_out + whole,
                   dh_rec + whole, dc + whole);
    }
  }
}

// One name per type, so that LATE_PHASE_FOR_TARGET can take an address.
void GatesForwardFloat(const LstmGatesForwardArgs<float>& args) { GatesForward(args); }
void GatesForwardDouble(const LstmGatesForwardArgs<double>& args) { GatesForward(args); }
void GatesBackwardFloat(const LstmGatesBackwardArgs<float>& args) { GatesBackward(args); }
void GatesBackwardDouble(const LstmGatesBackwardArgs<double>& args) { GatesBackward(args); }

}  // namespace HWY_NAMESPACE
}  // namespace late_phase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace late_phase {

template <>
void LstmGatesForward(const LstmGatesForwardArgs<float>& args) {
  LATE_PHASE_FOR_TARGET(GatesForwardFloat)(args);
}
template <>
void LstmGatesForward(const LstmGatesForwardArgs<double>& args) {
  LATE_PHASE_FOR_TARGET(GatesForwardDouble)(args);
}
template <>
void LstmGatesBackward(const LstmGatesBackwardArgs<float>& args) {
  LATE_PHASE_FOR_TARGET(GatesBackwardFloat)(args);
}
template <>
void LstmGatesBackward(const LstmGatesBackwardArgs<double>& args) {
  LATE_PHASE_FOR_TARGET(GatesBackwardDouble)(args);
}

}  // namespace late_phase
#endif  // HWY_ONCE
