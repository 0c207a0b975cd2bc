// The rank-1 LSTM for XLA, with the equations of kernels/rank1_lstm.h and kernels/cpu/lstm_gates.h:
// one loop over the steps in each direction, whose number is known when it is compiled, so that a
// GPU needs no host to go on. What does not depend on the step before is one product outside.
//
// A token out of range makes its sequence NaN from its step on, and adds to no row of dtable, as on
// a GPU.
#include <limits>

#include "kernels/rank1_lstm_shapes.h"
#include "kernels/xla/xla_kernel.h"
#include "tensorflow/core/platform/statusor.h"
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/lib/slicing.h"
#include "xla/shape_util.h"

namespace late_phase {
namespace {

using tensorflow::XlaOpKernelContext;
using xla::XlaOp;
using State = absl::Span<const XlaOp>;

enum class Form { kDense, kTokens };

// Gates i, f, g, o of a row [·, 4·H].
XlaOp GateOf(XlaOp row, int64_t gate) {
  const int64_t H = ShapeOf(row).dimensions(1) / 4;
  return xla::SliceInDim(row, gate * H, (gate + 1) * H, 1, 1);
}
XlaOp Wide(XlaOp x) { return xla::ConvertElementType(x, WideType(ShapeOf(x).element_type())); }
XlaOp One(XlaOp like) { return xla::ScalarLike(like, 1.0); }

// What the forward and the gradient kernel have in common: sizes and the member's weights.
struct Call {
  XlaOpKernelContext* ctx;
  Checks checks;
  int64_t T, N, C, H, K;
  XlaOp member;
  XlaOp u, v;       // [H], [4·H]
  XlaOp factors;    // uvᵀ [H,4·H]
  XlaOp recurrent;  // R∘uvᵀ
  xla::PrimitiveType stored, wide;

  [[nodiscard]] static absl::StatusOr<Call> Prepare(XlaOpKernelContext* ctx, const std::string& op,
                                                    absl::Span<const ShapeRule> rules, Form form) {
    TF_ASSIGN_OR_RETURN(const ShapeMatcher sizes, CheckInputs(ctx, op, rules));
    Call call{ctx,
              Checks(ctx, op),
              sizes["time"],
              sizes["batch"],
              sizes[form == Form::kDense ? "input" : "vocab"],
              sizes["units"],
              sizes["K"],
              {},
              {},
              {},
              {},
              {},
              {},
              {}};
    call.stored = ctx->InputXlaType("u");
    call.wide = WideType(call.stored);
    TF_ASSIGN_OR_RETURN(call.member, call.checks.Member("u", call.K));
    call.u = call.checks.NanUnlessHold(Wide(Row(ctx->Input("u"), call.member)));
    call.v = call.checks.NanUnlessHold(Wide(Row(ctx->Input("v"), call.member)));
    const XlaOp kernel = call.Input("recurrent_kernel");
    const xla::Shape shape = ShapeOf(kernel);
    call.factors = AlongAxis(call.u, shape, 0) * AlongAxis(call.v, shape, 1);
    call.recurrent = kernel * call.factors;
    return call;
  }

  XlaOp Input(const char* name) const { return Wide(ctx->Input(name)); }
  void SetOutput(int index, XlaOp x) const {
    ctx->SetOutput(index, xla::ConvertElementType(x, stored));
  }
  // [T,N,·] as [T·N,·].
  static XlaOp Rows(XlaOp x) { return xla::Collapse(x, {0, 1}); }
};

absl::Span<const ShapeRule> ForwardRules(Form form) {
  if (form == Form::kDense) return kRank1LstmInputs;
  return kRank1LstmTokensInputs;
}
absl::Span<const ShapeRule> GradRules(Form form) {
  if (form == Form::kDense) return kRank1LstmGradInputs;
  return kRank1LstmTokensGradInputs;
}

template <Form kForm>
class Rank1LstmXla : public XlaKernel {
 public:
  explicit Rank1LstmXla(tensorflow::OpKernelConstruction* ctx) : XlaKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("is_training", &is_training_));
  }

 private:
  // What a step carries and reads.
  enum { kH, kC, kHs, kGates, kCells, kRecurrent, kFirstInput, kTable };

  [[nodiscard]] absl::Status Build(XlaOpKernelContext* ctx) override {
    TF_ASSIGN_OR_RETURN(const Call call,
                        Call::Prepare(ctx, type_string(), ForwardRules(kForm), kForm));
    const int64_t T = call.T, N = call.N, H = call.H;
    auto kept = [&](int64_t width) {
      return is_training_ ? ZerosOf(ctx->builder(), call.stored, {T, N, width})
                          : ZerosOf(ctx->builder(), call.stored, {0, 0, 0});
    };
    std::vector<XlaOp> state = {call.Input("initial_h"),
                                call.Input("initial_c"),
                                ZerosOf(ctx->builder(), call.stored, {T, N, H}),
                                kept(4 * H),
                                kept(H),
                                call.recurrent};
    if (kForm == Form::kDense) {
      state.push_back(InputPart(call));
    } else {
      state.insert(state.end(), {ctx->Input("tokens"), ctx->Input("table")});
    }
    TF_ASSIGN_OR_RETURN(state, Loop(ctx->builder(), T, state,
                                    [this](XlaOp t, State values) { return Step(t, values); }));
    ctx->SetOutput(0, state[kHs]);
    call.SetOutput(1, state[kH]);
    call.SetOutput(2, state[kC]);
    ctx->SetOutput(3, state[kGates]);
    ctx->SetOutput(4, state[kCells]);
    return absl::OkStatus();
  }

  // x W + b of all steps [T,N,4·H].
  static XlaOp InputPart(const Call& call) {
    const XlaOp product =
        MatrixProduct(Call::Rows(call.ctx->Input("x")), 1, call.ctx->Input("kernel"), 0);
    const XlaOp sum = product + AlongAxis(call.Input("bias"), ShapeOf(product), 1);
    return xla::Reshape(sum, {call.T, call.N, 4 * call.H});
  }

  // Rows of the table, NaN for a token that has none.
  static XlaOp TableRows(XlaOp table, XlaOp tokens) {
    const int64_t N = ShapeOf(tokens).dimensions(0), vocab = ShapeOf(table).dimensions(0);
    const int64_t Z = ShapeOf(table).dimensions(1);
    const xla::PrimitiveType wide = WideType(ShapeOf(table).element_type());
    const XlaOp nan = xla::Broadcast(
        Number(table.builder(), wide, std::numeric_limits<double>::quiet_NaN()), {N, Z});
    if (vocab == 0) return nan;
    const XlaOp known = xla::And(xla::Ge(tokens, xla::ZerosLike(tokens)),
                                 xla::Lt(tokens, xla::FullLike(tokens, vocab)));
    return xla::Select(xla::BroadcastInDim(known, {N, Z}, {0}),
                       Wide(xla::TorchIndexSelect(table, tokens, 0)), nan);
  }

  // y, but NaN where x is.
  static XlaOp NanFrom(XlaOp x, XlaOp y) { return xla::Select(xla::Ne(x, x), x, y); }

  std::vector<XlaOp> Step(XlaOp t, State state) const {
    std::vector<XlaOp> next(state.begin(), state.end());
    XlaOp input = Row(state[kFirstInput], t);
    if (kForm == Form::kTokens) input = TableRows(state[kTable], input);
    const XlaOp z = MatrixProduct(state[kH], 1, state[kRecurrent], 0) + input;
    const XlaOp i = xla::Logistic(GateOf(z, 0)), f = xla::Logistic(GateOf(z, 1));
    const XlaOp g = xla::Tanh(GateOf(z, 2)), o = xla::Logistic(GateOf(z, 3));
    // XLA's vector code for the CPU loses NaN in activations, whose fast minima do not pass it on,
    // so it is carried around them.
    next[kC] = NanFrom(GateOf(z, 2), f * state[kC] + i * g);
    next[kH] = NanFrom(next[kC], o * xla::Tanh(next[kC]));
    auto keep = [&](int which, XlaOp value) {
      const xla::PrimitiveType stored = ShapeOf(state[which]).element_type();
      next[which] = WithRow(state[which], t, xla::ConvertElementType(value, stored));
    };
    keep(kHs, next[kH]);
    if (is_training_) {
      keep(kGates, xla::ConcatInDim(z.builder(), {i, f, g, o}, 1));
      keep(kCells, next[kC]);
    }
    return next;
  }

  bool is_training_;
};

template <Form kForm>
class Rank1LstmGradXla : public XlaKernel {
 public:
  using XlaKernel::XlaKernel;

 private:
  // What a step carries and reads.
  enum { kDh, kDc, kDz, kGates, kCells, kDhs, kInitialC, kRecurrent };

  [[nodiscard]] absl::Status Build(XlaOpKernelContext* ctx) override {
    TF_ASSIGN_OR_RETURN(const Call call,
                        Call::Prepare(ctx, type_string(), GradRules(kForm), kForm));
    const int64_t T = call.T, N = call.N, H = call.H;
    const std::vector<XlaOp> start = {call.Input("dfinal_h"),
                                      call.Input("dfinal_c"),
                                      ZerosOf(ctx->builder(), call.wide, {T, N, 4 * H}),
                                      ctx->Input("gates"),
                                      ctx->Input("cells"),
                                      ctx->Input("dh"),
                                      call.Input("initial_c"),
                                      call.recurrent};
    TF_ASSIGN_OR_RETURN(const std::vector<XlaOp> end, Loop(ctx->builder(), T, start, Step));
    const XlaOp dz = Call::Rows(end[kDz]);

    // The first outputs are those of the input.
    int output = 0;
    if (kForm == Form::kDense) {
      const XlaOp dx = MatrixProduct(dz, 1, call.Input("kernel"), 1);
      call.SetOutput(output++, xla::Reshape(dx, {T, N, call.C}));
    } else {
      call.SetOutput(output++, TableGradient(call, dz));
    }
    call.SetOutput(output++, end[kDh]);
    call.SetOutput(output++, end[kDc]);
    if (kForm == Form::kDense) {
      call.SetOutput(output++, MatrixProduct(Call::Rows(call.Input("x")), 0, dz, 0));
    }

    // With G = Σ_t h_{t−1}ᵀ dz_t, the gradient of R∘uvᵀ: dR = G ∘ uvᵀ, du = (G ∘ R) v, dv = (G ∘
    // R)ᵀ u
    const XlaOp G = MatrixProduct(PreviousH(call), 0, dz, 0);
    call.SetOutput(output++, G * call.factors);
    if (kForm == Form::kDense) call.SetOutput(output++, Sum(dz, {0}));
    const XlaOp products = G * call.Input("recurrent_kernel");
    const xla::Shape shape = ShapeOf(products);
    auto stack = [&](XlaOp row) {
      return StackOfZeros(call.K, call.member, call.checks.NanUnlessHold(row));
    };
    call.SetOutput(output++, stack(Sum(products * AlongAxis(call.v, shape, 1), {1})));
    call.SetOutput(output++, stack(Sum(products * AlongAxis(call.u, shape, 0), {0})));
    return absl::OkStatus();
  }

  static std::vector<XlaOp> Step(XlaOp step, State state) {
    std::vector<XlaOp> next(state.begin(), state.end());
    const int64_t T = ShapeOf(state[kDz]).dimensions(0);
    xla::XlaBuilder* b = step.builder();
    const XlaOp t = Integer(b, static_cast<int32_t>(T - 1)) - step;
    const XlaOp gates = Wide(Row(state[kGates], t));
    const XlaOp i = GateOf(gates, 0), f = GateOf(gates, 1), g = GateOf(gates, 2);
    const XlaOp o = GateOf(gates, 3), one = One(i);
    const XlaOp before = Wide(Row(state[kCells], t - Integer(b, 1)));
    const XlaOp first = xla::Broadcast(xla::Eq(t, Integer(b, 0)), ShapeOf(before).dimensions());
    const XlaOp c_prev = xla::Select(first, state[kInitialC], before);
    const XlaOp tanh_c = xla::Tanh(Wide(Row(state[kCells], t)));
    const XlaOp dh = Wide(Row(state[kDhs], t)) + state[kDh];
    const XlaOp dc = state[kDc] + dh * o * (one - tanh_c * tanh_c);
    // σ' = σ (1 − σ), tanh' = 1 − tanh²
    const XlaOp dz = xla::ConcatInDim(b,
                                      {dc * g * (i * (one - i)), dc * c_prev * (f * (one - f)),
                                       dc * i * (one - g * g), dh * tanh_c * (o * (one - o))},
                                      1);
    next[kDc] = dc * f;
    next[kDh] = MatrixProduct(dz, 1, state[kRecurrent], 1);
    next[kDz] = WithRow(state[kDz], t, dz);
    return next;
  }

  // h_{t−1} of all steps, [T·N,H].
  static XlaOp PreviousH(const Call& call) {
    const XlaOp h = call.Input("h");
    if (call.T == 0) return Call::Rows(h);
    const XlaOp first = xla::Reshape(call.Input("initial_h"), {1, call.N, call.H});
    return Call::Rows(
        xla::ConcatInDim(h.builder(), {first, xla::SliceInDim(h, 0, call.T - 1, 1, 0)}, 0));
  }

  // Row c: the sum of dz over all places where symbol c stood. XLA leaves out an index out of
  // range.
  static XlaOp TableGradient(const Call& call, XlaOp dz) {
    const XlaOp zeros = ZerosOf(dz.builder(), call.wide, {call.C, 4 * call.H});
    if (call.C == 0) return zeros;
    xla::ScatterDimensionNumbers dimensions;
    dimensions.add_update_window_dims(1);
    dimensions.add_inserted_window_dims(0);
    dimensions.add_scatter_dims_to_operand_dims(0);
    dimensions.set_index_vector_dim(1);
    return xla::Scatter(zeros, Call::Rows(call.ctx->Input("tokens")), dz,
                        xla::CreateScalarAddComputation(call.wide, dz.builder()), dimensions);
  }
};

LATE_PHASE_REGISTER_XLA("Rank1Lstm", Rank1LstmXla<Form::kDense>);
LATE_PHASE_REGISTER_XLA("Rank1LstmGrad", Rank1LstmGradXla<Form::kDense>);
LATE_PHASE_REGISTER_XLA("Rank1LstmTokens", Rank1LstmXla<Form::kTokens>);
LATE_PHASE_REGISTER_XLA("Rank1LstmTokensGrad", Rank1LstmGradXla<Form::kTokens>);

}  // namespace
}  // namespace late_phase
