// ReadMember, Spawn, SwaUpdate and Collapse for XLA, with the equations of kernels/member_rows.h.
//
// Spawn gives the bits of the other kernels. XLA promises less: it fuses a product into the
// addition that follows, replaces a division by a constant, may approximate divisions and square
// roots of floats on a GPU, and adds up in any order. `SameBits` has the means against each; sums
// run in loops.
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/member_rows.h"
#include "kernels/philox_normal.h"
#include "kernels/xla/xla_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_expression.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/shape_util.h"

namespace late_phase {
namespace {

using tensorflow::TensorShape;
using tensorflow::XlaOpKernelContext;
using xla::XlaOp;

// A variable [K >= 1, …].
struct Stack {
  XlaVariable var;
  TensorShape row;  // of one member
  int64_t K() const { return var.shape.dim_size(0); }
  int64_t D() const { return row.num_elements(); }
};

[[nodiscard]] absl::StatusOr<Stack> ReadStack(XlaOpKernelContext* ctx, const std::string& op,
                                              tensorflow::DataType dtype) {
  Stack stack;
  TF_ASSIGN_OR_RETURN(stack.var, ReadVariable(ctx, op, "var", dtype));
  TF_ASSIGN_OR_RETURN(stack.row, RowShape(op, stack.var));
  return stack;
}

// Attribute dtype: the type of the variable and of the output.
class ReadingXla : public XlaKernel {
 public:
  explicit ReadingXla(tensorflow::OpKernelConstruction* ctx) : XlaKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dtype", &dtype_));
  }

 protected:
  tensorflow::DataType dtype_;
};

class ReadMemberXla : public ReadingXla {
 public:
  using ReadingXla::ReadingXla;

 private:
  [[nodiscard]] absl::Status Build(XlaOpKernelContext* ctx) override {
    TF_ASSIGN_OR_RETURN(const Stack stack, ReadStack(ctx, type_string(), dtype_));
    Checks checks(ctx, type_string());
    TF_ASSIGN_OR_RETURN(const XlaOp member, checks.Member("var", stack.K()));
    ctx->SetOutput(0, checks.NanUnlessHold(Row(stack.var.value, member)));
    return absl::OkStatus();
  }
};

class CollapseXla : public ReadingXla {
 public:
  using ReadingXla::ReadingXla;

 private:
  [[nodiscard]] absl::Status Build(XlaOpKernelContext* ctx) override {
    TF_ASSIGN_OR_RETURN(const Stack stack, ReadStack(ctx, type_string(), dtype_));
    const XlaOp rows = xla::ConvertElementType(stack.var.value, xla::F64);
    const XlaOp first = Row(rows, Integer(ctx->builder(), 0));
    const xla::Shape shape = ShapeOf(rows);
    std::vector<int64_t> axes;
    for (int64_t axis = 1; axis < shape.dimensions().size(); ++axis) axes.push_back(axis);
    const XlaOp others = rows - xla::BroadcastInDim(first, shape.dimensions(), axes);
    const XlaOp members = Number(ctx->builder(), xla::F64, static_cast<double>(stack.K()));
    ctx->SetOutput(0, xla::ConvertElementType(first + Sum(others, {0}) / members, XlaType(dtype_)));
    return absl::OkStatus();
  }
};

// Arithmetic that is rounded operation by operation, as the other kernels' is.
class SameBits {
 public:
  // `zero` is a word that is 0 where results matter, which the compiler cannot know.
  explicit SameBits(XlaOp zero) : zero_(zero) {}

  // x, about which the compiler knows nothing: what made x and what uses it are not merged.
  XlaOp Opaque(XlaOp x) const {
    const xla::PrimitiveType type = ShapeOf(x).element_type();
    const xla::PrimitiveType bits = type == xla::F64 ? xla::U64 : xla::U32;
    return xla::BitcastConvertType(
        xla::BitcastConvertType(x, bits) ^ xla::ConvertElementType(zero_, bits), type);
  }
  XlaOp Multiply(XlaOp x, XlaOp y) const { return Opaque(x * y); }
  // Of floats, through double, where no processor approximates: the double result, rounded once
  // more, is the float result, because a double has more than twice the digits.
  XlaOp Divide(XlaOp x, XlaOp y) const { return Narrow(Wide(x) / Wide(y)); }
  XlaOp Sqrt(XlaOp x) const { return Narrow(xla::Sqrt(Wide(x))); }

 private:
  static XlaOp Wide(XlaOp x) { return xla::ConvertElementType(x, xla::F64); }
  XlaOp Narrow(XlaOp x) const { return xla::ConvertElementType(Opaque(x), xla::F32); }

  XlaOp zero_;
};

XlaOp Word(xla::XlaBuilder* builder, uint32_t value) {
  return xla::ConstantR0<uint32_t>(builder, value);
}
XlaOp Float(XlaOp like, float value) { return xla::ConstantR0<float>(like.builder(), value); }
XlaOp ToWord(XlaOp x) { return xla::ConvertElementType(x, xla::U32); }
XlaOp HighWord(XlaOp x) {
  return ToWord(xla::ShiftRightLogical(x, xla::ConstantR0<uint64_t>(x.builder(), 32)));
}

struct Words {
  XlaOp word[4];
};

// Philox, WordToFloat, Logarithm, SineCosine and NormalPair are those of kernels/philox_normal.h,
// line by line.
Words Philox(Words counter, XlaOp key0, XlaOp key1) {
  xla::XlaBuilder* b = key0.builder();
  auto wide = [](XlaOp x) { return xla::ConvertElementType(x, xla::U64); };
  const XlaOp multiplier0 = xla::ConstantR0<uint64_t>(b, kPhiloxMultiplier0);
  const XlaOp multiplier1 = xla::ConstantR0<uint64_t>(b, kPhiloxMultiplier1);
  XlaOp c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
  const PhiloxKey step = NextPhiloxKey({{0, 0}});
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const XlaOp x = multiplier0 * wide(c0), y = multiplier1 * wide(c2);
    c0 = HighWord(y) ^ c1 ^ key0;
    c1 = ToWord(y);
    c2 = HighWord(x) ^ c3 ^ key1;
    c3 = ToWord(x);
    key0 = key0 + Word(b, step.word[0]);
    key1 = key1 + Word(b, step.word[1]);
  }
  return {{c0, c1, c2, c3}};
}

XlaOp WordToFloat(XlaOp x) {
  auto to_float = [](XlaOp half) {
    return xla::ConvertElementType(xla::ConvertElementType(half, xla::S32), xla::F32);
  };
  const XlaOp high = to_float(xla::ShiftRightLogical(x, Word(x.builder(), 16)));
  const XlaOp low = to_float(x & Word(x.builder(), 0xFFFF));
  return high * Float(x, 65536.0f) + low;  // the product is exact
}

XlaOp Logarithm(const SameBits& exact, XlaOp u) {
  auto integer = [&](int32_t value) { return Integer(u.builder(), value); };
  XlaOp bits = xla::BitcastConvertType(u, xla::S32);
  const XlaOp e = xla::ShiftRightArithmetic(bits - integer(0x3F3504F3), integer(23));
  bits = bits - e * integer(1 << 23);
  const XlaOp m = xla::BitcastConvertType(bits, xla::F32);
  const XlaOp f = m - Float(u, 1);
  const XlaOp s = exact.Divide(f, m + Float(u, 1));
  const XlaOp q = exact.Multiply(s, s);
  XlaOp p = exact.Multiply(Float(u, 2.0f / 9), q) + Float(u, 2.0f / 7);
  p = exact.Multiply(p, q) + Float(u, 2.0f / 5);
  p = exact.Multiply(p, q) + Float(u, 2.0f / 3);
  p = exact.Multiply(exact.Multiply(p, q), s);
  const XlaOp series = (f - exact.Multiply(s, f)) + p;
  return exact.Multiply(xla::ConvertElementType(e, xla::F32), Float(u, 0.693147180559945309f)) +
         series;
}

void SineCosine(const SameBits& exact, XlaOp x, XlaOp* sine, XlaOp* cosine) {
  xla::XlaBuilder* b = x.builder();
  const XlaOp quarter = xla::ShiftRightLogical(x + Word(b, uint32_t{1} << 29), Word(b, 30));
  const XlaOp rest = xla::BitcastConvertType(x - xla::ShiftLeft(quarter, Word(b, 30)), xla::S32);
  const XlaOp a =
      exact.Multiply(xla::ConvertElementType(rest, xla::F32), Float(x, 1.46291807926715968e-9f));
  const XlaOp q = exact.Multiply(a, a);
  auto next = [&](XlaOp sum, float coefficient) {
    return exact.Multiply(sum, q) + Float(x, coefficient);
  };
  XlaOp s = exact.Multiply(Float(x, 1.0f / 362880), q) + Float(x, -1.0f / 5040);
  s = next(s, 1.0f / 120);
  s = next(s, -1.0f / 6);
  s = exact.Multiply(exact.Multiply(s, q), a) + a;
  XlaOp c = exact.Multiply(Float(x, -1.0f / 3628800), q) + Float(x, 1.0f / 40320);
  for (const float coefficient : {-1.0f / 720, 1.0f / 24, -0.5f, 1.0f}) c = next(c, coefficient);
  auto bit = [&](XlaOp word, uint32_t mask) { return xla::Ne(word & Word(b, mask), Word(b, 0)); };
  const XlaOp odd = bit(quarter, 1);
  const XlaOp sine_size = xla::Select(odd, c, s), cosine_size = xla::Select(odd, s, c);
  *sine = xla::Select(bit(quarter, 2), xla::Neg(sine_size), sine_size);
  *cosine = xla::Select(bit(quarter + Word(b, 1), 2), xla::Neg(cosine_size), cosine_size);
}

void NormalPair(const SameBits& exact, XlaOp radius_word, XlaOp angle_word, XlaOp* first,
                XlaOp* second) {
  // Both products are exact.
  const XlaOp u =
      WordToFloat(radius_word) * Float(radius_word, 0x1p-32f) + Float(radius_word, 0x1p-33f);
  const XlaOp radius = exact.Sqrt(Float(u, -2.0f) * Logarithm(exact, u));
  XlaOp sine, cosine;
  SineCosine(exact, angle_word, &sine, &cosine);
  *first = exact.Multiply(radius, cosine);
  *second = exact.Multiply(radius, sine);
}

// x[0] + x[1] + … in this order, of [n, …].
[[nodiscard]] absl::StatusOr<XlaOp> SumInOrder(XlaOp x) {
  const xla::Shape shape = ShapeOf(x);
  const XlaOp zeros = ZerosOf(x.builder(), shape.element_type(), shape.dimensions().subspan(1));
  TF_ASSIGN_OR_RETURN(const std::vector<XlaOp> result,
                      Loop(x.builder(), shape.dimensions(0), {zeros, x},
                           [](XlaOp i, absl::Span<const XlaOp> state) -> std::vector<XlaOp> {
                             return {state[0] + Row(state[1], i), state[1]};
                           }));
  return result[0];
}

class SpawnXla : public XlaKernel {
 public:
  using XlaKernel::XlaKernel;

 private:
  [[nodiscard]] absl::Status Build(XlaOpKernelContext* ctx) override {
    TF_ASSIGN_OR_RETURN(const Stack stack, ReadStack(ctx, type_string(), tensorflow::DT_INVALID));
    TF_ASSIGN_OR_RETURN(const xla::Shape seed, ctx->InputXlaShape("seed"));
    if (const TensorShape shape(seed.dimensions()); shape != TensorShape({2})) {
      return absl::InvalidArgumentError(absl::StrCat(
          type_string(), ": `seed` must be [2]. Received: shape=", shape.DebugString()));
    }
    TF_RETURN_IF_ERROR(CheckFloating(type_string(), "var", stack.var.dtype));
    const xla::PrimitiveType stored = XlaType(stack.var.dtype), wide = WideType(stored);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    Checks checks(ctx, type_string());
    TF_ASSIGN_OR_RETURN(const XlaOp sigma, checks.InRange("sigma", kNotNegative, wide));
    const int64_t K = stack.K(), D = stack.D();
    if (D == 0) return absl::OkStatus();

    const XlaOp rows = xla::Reshape(stack.var.value, {K, D});
    const XlaOp first = xla::ConvertElementType(Row(rows, Integer(ctx->builder(), 0)), wide);
    // Whether the first weight is NaN, in which case all results are.
    const XlaOp first_weight = xla::Reshape(xla::SliceInDim(first, 0, 1, 1, 0), {});
    const XlaOp number = xla::Le(first_weight, Number(ctx->builder(), wide, kInfinity));
    const SameBits exact(xla::ConvertElementType(xla::Not(number), xla::U32));
    TF_ASSIGN_OR_RETURN(const XlaOp scale, Scale(exact, first, sigma, D));
    const XlaOp noise = xla::ConvertElementType(Noise(exact, ctx->Input("seed"), K, D), wide);
    const XlaOp source = xla::BroadcastInDim(first, {K, D}, {1});
    const XlaOp spawned = source + exact.Multiply(scale, noise);
    const XlaOp copied = xla::Broadcast(xla::Eq(sigma, xla::ZerosLike(sigma)), {K, D});
    const XlaOp result = checks.NanUnlessHold(xla::Select(copied, source, spawned));
    return ctx->AssignVariable(
        "var", stack.var.dtype,
        xla::Reshape(xla::ConvertElementType(result, stored), stack.var.shape.dim_sizes()));
  }

  // sigma · RMS(x), summed in the order that kRmsLanes documents. Zeros at the end of the last
  // block add nothing.
  [[nodiscard]] static absl::StatusOr<XlaOp> Scale(const SameBits& exact, XlaOp x, XlaOp sigma,
                                                   int64_t D) {
    xla::XlaBuilder* b = x.builder();
    const int64_t blocks = (D + kBlockElements - 1) / kBlockElements;
    const XlaOp wide = xla::ConvertElementType(x, xla::F64);
    const XlaOp squares = PadTo(exact.Multiply(wide, wide), blocks * kBlockElements);
    // From [blocks, places in a lane, lanes] to the places first.
    const XlaOp places = xla::Transpose(
        xla::Reshape(squares, {blocks, kBlockElements / kRmsLanes, kRmsLanes}), {1, 2, 0});
    TF_ASSIGN_OR_RETURN(const XlaOp of_lanes, SumInOrder(places));
    TF_ASSIGN_OR_RETURN(const XlaOp of_blocks, SumInOrder(of_lanes));
    TF_ASSIGN_OR_RETURN(const XlaOp total, SumInOrder(of_blocks));
    const XlaOp size = exact.Opaque(Number(b, xla::F64, static_cast<double>(D)));
    const XlaOp rms = xla::Sqrt(total / size);
    return xla::ConvertElementType(xla::ConvertElementType(sigma, xla::F64) * rms,
                                   ShapeOf(x).element_type());
  }

  static XlaOp PadTo(XlaOp x, int64_t size) {
    xla::PaddingConfig padding;
    padding.add_dimensions()->set_edge_padding_high(size - ShapeOf(x).dimensions(0));
    return xla::Pad(x, xla::Zero(x.builder(), ShapeOf(x).element_type()), padding);
  }

  // [K,D] normals, each a function of the seed, its row and its place (kernels/philox_normal.h).
  static XlaOp Noise(const SameBits& exact, XlaOp seed, int64_t K, int64_t D) {
    xla::XlaBuilder* b = seed.builder();
    const XlaOp words = xla::BitcastConvertType(seed, xla::U64);
    auto half = [&](int64_t i, bool high) {
      const XlaOp word = xla::Reshape(xla::SliceInDim(words, i, i + 1, 1, 0), {});
      return high ? HighWord(word) : ToWord(word);
    };
    const Words stream = Philox({{half(0, false), half(0, true), half(1, false), half(1, true)}},
                                Word(b, 0), Word(b, 0));

    const int64_t chunks = (D + kNormalChunk - 1) / kNormalChunk;
    auto iota = [&](xla::PrimitiveType type, int64_t axis) {
      return xla::Iota(b, xla::ShapeUtil::MakeShape(type, {K, chunks, kNormalStride}), axis);
    };
    const XlaOp counter =
        iota(xla::U64, 1) * xla::ConstantR0<uint64_t>(b, kNormalStride) + iota(xla::U64, 2);
    const XlaOp offset = xla::Broadcast(stream.word[3], {K, chunks, kNormalStride});
    const Words random =
        Philox({{ToWord(counter), HighWord(counter), iota(xla::U32, 0) + stream.word[2], offset}},
               stream.word[0], stream.word[1]);
    // Both pairs of words at once, since what this makes of them takes XLA long to compile.
    auto pairs = [&](int word) {
      const std::vector<int64_t> one = {K, chunks, 1, kNormalStride};
      return xla::ConcatInDim(
          b, {xla::Reshape(random.word[word], one), xla::Reshape(random.word[word + 2], one)}, 2);
    };
    XlaOp first, second;  // [K, chunks, 2, stride] each
    NormalPair(exact, pairs(0), pairs(1), &first, &second);
    const std::vector<int64_t> by_pair = {K, chunks, 2, 1, kNormalStride};
    const XlaOp all = xla::Reshape(
        xla::ConcatInDim(b, {xla::Reshape(first, by_pair), xla::Reshape(second, by_pair)}, 3),
        {K, chunks * kNormalChunk});
    return xla::SliceInDim(all, 0, D, 1, 1);
  }
};

class SwaUpdateXla : public XlaKernel {
 public:
  using XlaKernel::XlaKernel;

 private:
  [[nodiscard]] absl::Status Build(XlaOpKernelContext* ctx) override {
    TF_RETURN_IF_ERROR(CheckDistinct(ctx, type_string(), {"average", "source"}));
    TF_ASSIGN_OR_RETURN(const XlaVariable source,
                        ReadVariable(ctx, type_string(), "source", tensorflow::DT_INVALID));
    TF_RETURN_IF_ERROR(CheckFloating(type_string(), "source", source.dtype));
    TF_ASSIGN_OR_RETURN(const XlaVariable average,
                        ReadVariable(ctx, type_string(), "average", WideType(source.dtype)));
    if (average.shape != source.shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          type_string(), ": `average` must have the shape of `source`, ",
          source.shape.DebugString(), ". Received: shape=", average.shape.DebugString()));
    }
    TF_RETURN_IF_ERROR(CheckCount(ctx));
    Checks checks(ctx, type_string());
    const XlaOp count = ctx->Input("count");
    checks.Require(xla::Ge(count, xla::ZerosLike(count)));
    const XlaOp samples = xla::ConvertElementType(count, xla::F64);
    const XlaOp one = Number(ctx->builder(), xla::F64, 1);
    const xla::PrimitiveType wide = XlaType(average.dtype);
    const XlaOp rate = xla::ConvertElementType(one / (samples + one), wide);
    const XlaOp sample = xla::ConvertElementType(source.value, wide);
    const XlaOp moved = average.value + rate * (sample - average.value);
    const XlaOp copied =
        xla::Broadcast(xla::Eq(count, xla::ZerosLike(count)), average.shape.dim_sizes());
    return ctx->AssignVariable("average", average.dtype,
                               checks.NanUnlessHold(xla::Select(copied, sample, moved)));
  }

  [[nodiscard]] absl::Status CheckCount(XlaOpKernelContext* ctx) const {
    TF_ASSIGN_OR_RETURN(const xla::Shape given, ctx->InputXlaShape("count"));
    const TensorShape shape(given.dimensions());
    const auto known = ctx->InputExpression("count").constant_value();
    std::string received;
    if (shape.dims() != 0) {
      received = absl::StrCat("shape=", shape.DebugString());
    } else if (known && known->scalar<int64_t>()() < 0) {
      received = absl::StrCat("count=", known->scalar<int64_t>()());
    } else {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat(type_string(), ": `count` must be a scalar >= 0. Received: ", received));
  }
};

LATE_PHASE_REGISTER_XLA("ReadMember", ReadMemberXla);
LATE_PHASE_REGISTER_XLA("Collapse", CollapseXla);
LATE_PHASE_REGISTER_XLA("Spawn", SpawnXla);
LATE_PHASE_REGISTER_XLA("SwaUpdate", SwaUpdateXla);

}  // namespace
}  // namespace late_phase
