// Softmax cross-entropy for XLA, with the equations of kernels/softmax_cross_entropy.h. A label out
// of range makes its row NaN, as on a GPU.
#include <limits>

#include "kernels/softmax_cross_entropy_shapes.h"
#include "kernels/xla/xla_kernel.h"
#include "tensorflow/core/platform/statusor.h"
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/shape_util.h"

namespace late_phase {
namespace {

using tensorflow::XlaOpKernelContext;
using xla::XlaOp;

class SoftmaxCrossEntropyXla : public XlaKernel {
 public:
  using XlaKernel::XlaKernel;

 private:
  [[nodiscard]] absl::Status Build(XlaOpKernelContext* ctx) override {
    TF_ASSIGN_OR_RETURN(const ShapeMatcher sizes,
                        CheckInputs(ctx, type_string(), kSoftmaxCrossEntropyInputs));
    xla::XlaBuilder* b = ctx->builder();
    const int64_t n = sizes["n"], vocab = sizes["vocab"];
    const xla::PrimitiveType stored = ctx->input_xla_type(0), wide = WideType(stored);
    const xla::Shape logits = xla::ShapeUtil::MakeShape(wide, {n, vocab});
    auto over_row = [&](XlaOp x) { return AlongAxis(x, logits, 0); };

    const XlaOp z = MatrixProduct(ctx->Input("features"), 1, ctx->Input("kernel"), 0) +
                    AlongAxis(xla::ConvertElementType(ctx->Input("bias"), wide), logits, 1);
    const XlaOp lowest = Number(b, wide, -std::numeric_limits<double>::infinity());
    const XlaOp largest = xla::Reduce(z, lowest, xla::CreateScalarMaxComputation(wide, b), {1});
    const XlaOp shifted = z - over_row(largest);
    const XlaOp labels = ctx->Input("labels");
    const XlaOp is_label =
        xla::Eq(xla::Iota(b, xla::ShapeUtil::MakeShape(xla::S32, {n, vocab}), 1), over_row(labels));
    const XlaOp zeros = ZerosOf(b, wide, {n, vocab});

    // The label is left out, and added separately: a confident prediction has others ≪ of_label =
    // 1, and neither its loss nor its gradient may be computed from the rounded total.
    const XlaOp label_logit = Sum(xla::Select(is_label, shifted, zeros), {1});
    const XlaOp of_label = xla::Exp(label_logit);
    const XlaOp exponentials = xla::Select(is_label, zeros, xla::Exp(shifted));
    const XlaOp others = Sum(exponentials, {1}), total = others + of_label;
    const XlaOp loss = xla::Select(xla::Eq(of_label, Ones(of_label)), xla::Log1p(others),
                                   xla::Log(total) - label_logit);
    const XlaOp dlogits = xla::Select(is_label, over_row(xla::Neg(others) / total),
                                      exponentials * over_row(Ones(total) / total));

    const XlaOp known = xla::And(xla::Ge(labels, xla::ZerosLike(labels)),
                                 xla::Lt(labels, xla::FullLike(labels, vocab)));
    auto nan_unless_known = [&](XlaOp of_known, XlaOp x) {
      return xla::ConvertElementType(
          xla::Select(of_known, x, xla::FullLike(x, std::numeric_limits<double>::quiet_NaN())),
          stored);
    };
    ctx->SetOutput(0, nan_unless_known(known, loss));
    ctx->SetOutput(1, nan_unless_known(over_row(known), dlogits));
    return absl::OkStatus();
  }

  static XlaOp Ones(XlaOp like) { return xla::FullLike(like, 1.0); }
};

class SoftmaxCrossEntropyGradXla : public XlaKernel {
 public:
  using XlaKernel::XlaKernel;

 private:
  [[nodiscard]] absl::Status Build(XlaOpKernelContext* ctx) override {
    TF_RETURN_IF_ERROR(CheckInputs(ctx, type_string(), kSoftmaxCrossEntropyGradInputs).status());
    const xla::PrimitiveType stored = ctx->input_xla_type(0), wide = WideType(stored);
    auto input = [&](const char* name) { return xla::ConvertElementType(ctx->Input(name), wide); };
    // dz = dloss ∘ dlogits, dF = dz·Wᵀ, dW = Fᵀ·dz, db = Σ_r dz[r]
    const XlaOp dlogits = input("dlogits");
    const XlaOp dz = dlogits * AlongAxis(input("dloss"), ShapeOf(dlogits), 0);
    const XlaOp results[] = {MatrixProduct(dz, 1, input("kernel"), 1),
                             MatrixProduct(input("features"), 0, dz, 0), Sum(dz, {0})};
    for (int i = 0; i < 3; ++i) {
      ctx->SetOutput(i, xla::ConvertElementType(results[i], stored));
    }
    return absl::OkStatus();
  }
};

LATE_PHASE_REGISTER_XLA("SoftmaxCrossEntropy", SoftmaxCrossEntropyXla);
LATE_PHASE_REGISTER_XLA("SoftmaxCrossEntropyGrad", SoftmaxCrossEntropyGradXla);

}  // namespace
}  // namespace late_phase
