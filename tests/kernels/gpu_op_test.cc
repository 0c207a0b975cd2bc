// Every OpKernel of the GPU, run in the CUDA harness, against that of the CPU: what it allocates,
// where it expects its inputs, what it hands to its core. The cores have tests of their own.
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/half_types.h"
#include "tensorflow/core/framework/attr_value_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tests/kernels/kernel_runner.h"
#include "tests/support/compare.h"
#include "tests/support/status_matchers.h"

namespace late_phase {
namespace {

using tensorflow::AttrValue;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using test_util::IsOk;
using test_util::KernelCall;
using test_util::KernelResult;
using test_util::RunKernel;
using test_util::StatusIs;
using test_util::Variable;

template <typename V>
AttrValue Attr(const V& value) {
  AttrValue attr;
  tensorflow::SetAttrValue(value, &attr);
  return attr;
}

template <typename T>
Tensor Scalar(T value) {
  Tensor tensor(tensorflow::DataTypeToEnum<T>::value, TensorShape({}));
  tensor.scalar<T>()() = value;
  return tensor;
}

std::vector<double> Values(const Tensor& tensor) {
  std::vector<double> values(tensor.NumElements());
  for (size_t i = 0; i < values.size(); ++i) {
    switch (tensor.dtype()) {
      case tensorflow::DT_DOUBLE:
        values[i] = tensor.flat<double>()(i);
        break;
      case tensorflow::DT_FLOAT:
        values[i] = tensor.flat<float>()(i);
        break;
      case tensorflow::DT_HALF:
        values[i] = static_cast<float>(tensor.flat<Eigen::half>()(i));
        break;
      case tensorflow::DT_BFLOAT16:
        values[i] = static_cast<float>(tensor.flat<Eigen::bfloat16>()(i));
        break;
      case tensorflow::DT_INT64:
        values[i] = static_cast<double>(tensor.flat<int64_t>()(i));
        break;
      default:
        ADD_FAILURE() << "no such type is expected";
    }
  }
  return values;
}

void ExpectNear(const Tensor& actual, const Tensor& expected, double tolerance) {
  ASSERT_EQ(actual.dtype(), expected.dtype());
  ASSERT_EQ(actual.shape(), expected.shape());
  EXPECT_LE(test_util::RelativeError(Values(actual), Values(expected)), tolerance);
}

// A half value may round to its other neighbour.
template <typename T>
double Tolerance() {
  if (sizeof(T) == 8) return 1e-12;
  if (sizeof(T) == 4) return 2e-6;
  return std::is_same_v<T, Eigen::half> ? 2e-3 : 1.6e-2;
}

template <typename T>
class GpuOp : public ::testing::Test {
 protected:
  using Wide = ComputeType<T>;  // of statistics, slots, sums and averages

  template <typename V = T>
  Tensor Random(const std::vector<int64_t>& dims, double low = -1, double high = 1) {
    Tensor tensor(tensorflow::DataTypeToEnum<V>::value, TensorShape(dims));
    std::uniform_real_distribution<float> uniform(low, high);
    auto flat = tensor.flat<V>();
    for (int64_t i = 0; i < flat.size(); ++i) flat(i) = static_cast<V>(uniform(engine_));
    return tensor;
  }
  Tensor Indices(const std::vector<int64_t>& dims, int32_t limit) {
    Tensor tensor(tensorflow::DT_INT32, TensorShape(dims));
    auto flat = tensor.flat<int32_t>();
    for (int64_t i = 0; i < flat.size(); ++i) flat(i) = engine_() % limit;
    return tensor;
  }

  // On both devices; returns what the GPU gave. Gradients of long sums differ by more; an output
  // that is itself a rounding error is not compared.
  KernelResult ExpectSame(const KernelCall& call, double slack = 1, size_t rounding_error = -1) {
    SCOPED_TRACE(call.op);
    const KernelResult cpu = RunKernel("CPU", call), gpu = RunKernel("GPU", call);
    EXPECT_THAT(cpu.status, IsOk());
    EXPECT_THAT(gpu.status, IsOk());
    EXPECT_EQ(gpu.outputs.size(), cpu.outputs.size());
    for (size_t i = 0; i < gpu.outputs.size() && i < cpu.outputs.size(); ++i) {
      if (i == rounding_error) continue;
      SCOPED_TRACE("output " + std::to_string(i));
      ExpectNear(gpu.outputs[i], cpu.outputs[i], slack * Tolerance<T>());
    }
    for (size_t i = 0; i < gpu.variables.size(); ++i) {
      SCOPED_TRACE("variable " + std::to_string(i));
      ExpectNear(gpu.variables[i], cpu.variables[i], slack * Tolerance<T>());
    }
    return gpu;
  }

  std::mt19937 engine_{7};
};
using Types = ::testing::Types<float, double, Eigen::half, Eigen::bfloat16>;
TYPED_TEST_SUITE(GpuOp, Types);

TYPED_TEST(GpuOp, Rank1Lstm) {
  const int64_t T = 4, N = 3, C = 5, H = 6, K = 3;
  const Tensor x = this->Random({T, N, C}), h0 = this->Random({N, H}), c0 = this->Random({N, H});
  const Tensor kernel = this->Random({C, 4 * H}), recurrent = this->Random({H, 4 * H});
  const Tensor bias = this->Random({4 * H}), u = this->Random({K, H}), v = this->Random({K, 4 * H});
  const Tensor member = Scalar<int32_t>(1);
  KernelCall forward = {"LatePhase>Rank1Lstm", {x, h0, c0, kernel, recurrent, bias, u, v, member}};
  const KernelResult out = this->ExpectSame(forward);
  ASSERT_EQ(out.outputs.size(), 5u);
  this->ExpectSame(
      {"LatePhase>Rank1LstmGrad",
       {x, h0, c0, kernel, recurrent, u, v, member, out.outputs[0], out.outputs[3], out.outputs[4],
        this->Random({T, N, H}), this->Random({N, H}), this->Random({N, H})}},
      4);
  forward.attrs["is_training"] = Attr(false);
  const KernelResult inference = this->ExpectSame(forward);
  EXPECT_EQ(inference.outputs[3].NumElements(), 0);
}

TYPED_TEST(GpuOp, Rank1LstmTokens) {
  const int64_t T = 5, N = 4, C = 7, H = 3, K = 2;
  Tensor tokens = this->Indices({T, N}, C);
  const Tensor table = this->Random({C, 4 * H}), h0 = this->Random({N, H}),
               c0 = this->Random({N, H}), recurrent = this->Random({H, 4 * H}),
               u = this->Random({K, H}), v = this->Random({K, 4 * H}), member = Scalar<int32_t>(1);
  const KernelResult out = this->ExpectSame(
      {"LatePhase>Rank1LstmTokens", {tokens, table, h0, c0, recurrent, u, v, member}});
  ASSERT_EQ(out.outputs.size(), 5u);
  this->ExpectSame(
      {"LatePhase>Rank1LstmTokensGrad",
       {tokens, table, h0, c0, recurrent, u, v, member, out.outputs[0], out.outputs[3],
        out.outputs[4], this->Random({T, N, H}), this->Random({N, H}), this->Random({N, H})}},
      4);

  // The host does not see tokens: a wrong one makes its sequence NaN, and no other.
  for (const int32_t wrong : {-1, static_cast<int32_t>(C)}) {
    tokens.matrix<int32_t>()(2, 1) = wrong;
    const KernelResult result = RunKernel(
        "GPU", {"LatePhase>Rank1LstmTokens", {tokens, table, h0, c0, recurrent, u, v, member}});
    ASSERT_THAT(result.status, IsOk());
    const std::vector<double> h = Values(result.outputs[0]);
    for (int64_t t = 0; t < T; ++t) {
      for (int64_t n = 0; n < N; ++n) {
        EXPECT_EQ(std::isnan(h[(t * N + n) * H]), n == 1 && t >= 2) << t << " " << n;
      }
    }
  }
}

// The output of BatchNorm that holds what the mean's rounding left.
constexpr int kMeanRest = 4;

TYPED_TEST(GpuOp, BatchNorm) {
  using Wide = typename TestFixture::Wide;
  const int64_t K = 3, C = 5;
  const Tensor scale = this->template Random<Wide>({K, C}),
               offset = this->template Random<Wide>({K, C}),
               mean = this->template Random<Wide>({K, C}),
               variance = this->template Random<Wide>({K, C}, 0.5, 2), member = Scalar<int32_t>(2);
  for (const bool is_training : {true, false}) {
    for (const char* activation : {"Identity", "Relu"}) {
      for (const std::vector<int64_t>& dims :
           {std::vector<int64_t>{7, C}, std::vector<int64_t>{2, 3, 4, C}}) {
        const Tensor x = this->Random(dims), dy = this->Random(dims);
        const std::map<std::string, AttrValue> attrs = {{"is_training", Attr(is_training)},
                                                        {"activation", Attr(activation)}};
        const KernelResult out = this->ExpectSame(
            {"LatePhase>BatchNorm", {x, scale, offset, mean, variance, member}, attrs}, 1,
            kMeanRest);
        ASSERT_EQ(out.outputs.size(), 6u);
        this->ExpectSame(
            {"LatePhase>BatchNormGrad",
             {x, scale, offset, member, out.outputs[3], out.outputs[4], out.outputs[5], dy},
             attrs},
            4);
      }
    }
  }
}

// [N,H,W,C] as [N,C,H,W].
template <typename T>
Tensor ChannelsFirst(const Tensor& x) {
  const int64_t N = x.dim_size(0), H = x.dim_size(1), W = x.dim_size(2), C = x.dim_size(3);
  Tensor y(x.dtype(), TensorShape({N, C, H, W}));
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t i = 0; i < H; ++i) {
      for (int64_t j = 0; j < W; ++j) {
        for (int64_t c = 0; c < C; ++c) y.tensor<T, 4>()(n, c, i, j) = x.tensor<T, 4>()(n, i, j, c);
      }
    }
  }
  return y;
}

TYPED_TEST(GpuOp, BatchNormChannelsFirst) {
  using T = TypeParam;
  using Wide = typename TestFixture::Wide;
  const int64_t K = 2, C = 3;
  const Tensor x = this->Random({2, 5, 7, C}), dy = this->Random({2, 5, 7, C}),
               scale = this->template Random<Wide>({K, C}),
               offset = this->template Random<Wide>({K, C}),
               mean = this->template Random<Wide>({K, C}),
               variance = this->template Random<Wide>({K, C}, 0.5, 2), member = Scalar<int32_t>(1);
  const std::map<std::string, AttrValue> last = {{"activation", Attr("Relu")}},
                                         first = {{"activation", Attr("Relu")},
                                                  {"data_format", Attr("NCHW")}};
  const KernelResult expected =
      RunKernel("CPU", {"LatePhase>BatchNorm", {x, scale, offset, mean, variance, member}, last});
  const KernelResult actual = RunKernel(
      "GPU",
      {"LatePhase>BatchNorm", {ChannelsFirst<T>(x), scale, offset, mean, variance, member}, first});
  ASSERT_THAT(actual.status, IsOk());
  ExpectNear(actual.outputs[0], ChannelsFirst<T>(expected.outputs[0]), Tolerance<T>());
  for (int i = 1; i < 6; ++i) {
    if (i == kMeanRest) continue;
    ExpectNear(actual.outputs[i], expected.outputs[i], Tolerance<Wide>());
  }

  const std::vector<Tensor>& saved = expected.outputs;
  const KernelResult expected_gradient =
      RunKernel("CPU", {"LatePhase>BatchNormGrad",
                        {x, scale, offset, member, saved[3], saved[4], saved[5], dy},
                        last});
  const KernelResult gradient =
      RunKernel("GPU", {"LatePhase>BatchNormGrad",
                        {ChannelsFirst<T>(x), scale, offset, member, saved[3], saved[4], saved[5],
                         ChannelsFirst<T>(dy)},
                        first});
  ASSERT_THAT(gradient.status, IsOk());
  ExpectNear(gradient.outputs[0], ChannelsFirst<T>(expected_gradient.outputs[0]),
             4 * Tolerance<T>());
  ExpectNear(gradient.outputs[1], expected_gradient.outputs[1], 4 * Tolerance<Wide>());
  ExpectNear(gradient.outputs[2], expected_gradient.outputs[2], 4 * Tolerance<Wide>());
}

TYPED_TEST(GpuOp, SoftmaxCrossEntropy) {
  const int64_t n = 9, units = 5, vocab = 11;
  const Tensor features = this->Random({n, units}), kernel = this->Random({units, vocab}),
               bias = this->Random({vocab});
  Tensor labels = this->Indices({n}, vocab);
  const KernelResult out =
      this->ExpectSame({"LatePhase>SoftmaxCrossEntropy", {features, kernel, bias, labels}});
  ASSERT_EQ(out.outputs.size(), 2u);
  this->ExpectSame(
      {"LatePhase>SoftmaxCrossEntropyGrad", {features, kernel, out.outputs[1], this->Random({n})}},
      4);

  labels.flat<int32_t>()(4) = vocab;
  const KernelResult result =
      RunKernel("GPU", {"LatePhase>SoftmaxCrossEntropy", {features, kernel, bias, labels}});
  ASSERT_THAT(result.status, IsOk());
  const std::vector<double> loss = Values(result.outputs[0]);
  for (int64_t i = 0; i < n; ++i) EXPECT_EQ(std::isnan(loss[i]), i == 4) << i;
}

// Inputs of the updates, by name; `slots` and scalars in the order of the signatures.
TYPED_TEST(GpuOp, MemberUpdates) {
  using T = TypeParam;
  using Wide = typename TestFixture::Wide;
  const int64_t K = 3, D = 7;
  const auto scalar = [](double value) { return Scalar<T>(static_cast<T>(value)); };
  const Tensor var = this->Random({K, D}), member = Scalar<int32_t>(1), lr = scalar(0.1),
               decay = scalar(0.01), a = this->template Random<Wide>({K, D}),
               b = this->template Random<Wide>({K, D}, 0.1, 1);
  Tensor count(tensorflow::DT_INT64, TensorShape({K}));
  for (int64_t k = 0; k < K; ++k) count.flat<int64_t>()(k) = 4 + k;
  for (const Tensor& grad : {this->Random({D}), this->Random({K, D})}) {
    this->ExpectSame({"LatePhase>MemberApplySgd", {Variable(var), member, lr, decay, grad}});
    for (const bool use_nesterov : {false, true}) {
      this->ExpectSame(
          {"LatePhase>MemberApplyMomentum",
           {Variable(var), Variable(a), member, lr, scalar(0.9), decay, grad},
           {{"use_nesterov", Attr(use_nesterov)}, {"lr_in_accum", Attr(!use_nesterov)}}});
    }
    const KernelResult adam =
        this->ExpectSame({"LatePhase>MemberApplyAdam",
                          {Variable(var), Variable(a), Variable(b), Variable(count), member, lr,
                           scalar(0.9), scalar(0.99), scalar(1e-3), decay, grad}});
    ASSERT_EQ(adam.variables.size(), 4u);
    EXPECT_EQ(Values(adam.variables[3]), (std::vector<double>{4, 6, 6}));
  }
}

TYPED_TEST(GpuOp, BaseUpdates) {
  using T = TypeParam;
  using Wide = typename TestFixture::Wide;
  const auto scalar = [](double value) { return Scalar<T>(static_cast<T>(value)); };
  const Tensor var = this->Random({3, 5}), sum = this->template Random<Wide>({3, 5}),
               a = this->template Random<Wide>({3, 5}),
               b = this->template Random<Wide>({3, 5}, 0.1, 1), grad = this->Random({3, 5}),
               count = Scalar<int64_t>(2), scale = scalar(0.5), lr = scalar(0.1),
               decay = scalar(0.01);
  // Alone in its cycle, in the middle of one, the last of one.
  for (const auto& [at, length] : {std::pair(0, 1), std::pair(1, 4), std::pair(3, 4)}) {
    SCOPED_TRACE("member " + std::to_string(at) + " of " + std::to_string(length));
    const Tensor member = Scalar<int32_t>(at), cycle = Scalar<int32_t>(length);
    this->ExpectSame({"LatePhase>BaseApplySgd",
                      {Variable(var), Variable(sum), member, cycle, scale, lr, decay, grad}});
    this->ExpectSame({"LatePhase>BaseApplyMomentum",
                      {Variable(var), Variable(a), Variable(sum), member, cycle, scale, lr,
                       scalar(0.9), decay, grad}});
    this->ExpectSame(
        {"LatePhase>BaseApplyAdam",
         {Variable(var), Variable(a), Variable(b), Variable(count), Variable(sum), member, cycle,
          scale, lr, scalar(0.9), scalar(0.99), scalar(1e-3), decay, grad}});
  }
}

TYPED_TEST(GpuOp, MemberRows) {
  using T = TypeParam;
  using Wide = typename TestFixture::Wide;
  const Tensor var = this->Random({4, 3, 50});
  const auto dtype = Attr(tensorflow::DataTypeToEnum<T>::value);
  this->ExpectSame(
      {"LatePhase>ReadMember", {Variable(var), Scalar<int32_t>(2)}, {{"dtype", dtype}}});
  this->ExpectSame({"LatePhase>Collapse", {Variable(var)}, {{"dtype", dtype}}});
  Tensor seed(tensorflow::DT_INT64, TensorShape({2}));
  seed.flat<int64_t>()(0) = 5;
  seed.flat<int64_t>()(1) = -9;
  // The same noise, to the last bit.
  const KernelCall spawn = {"LatePhase>Spawn",
                            {Variable(var), Scalar<T>(static_cast<T>(0.5)), seed}};
  const KernelResult spawned = this->ExpectSame(spawn);
  ASSERT_EQ(spawned.variables.size(), 1u);
  EXPECT_EQ(Values(spawned.variables[0]), Values(RunKernel("CPU", spawn).variables[0]));
  for (const int64_t count : {0, 3}) {
    this->ExpectSame({"LatePhase>SwaUpdate",
                      {Variable(this->template Random<Wide>({4, 3, 50})), Variable(var),
                       Scalar<int64_t>(count)}});
  }
}

// A variable that somebody has read is written into a buffer of its own.
TYPED_TEST(GpuOp, ReadersKeepWhatTheyRead) {
  using T = TypeParam;
  const Tensor var = this->Random({2, 9}), zero = Scalar<T>(T(0));
  KernelCall call = {
      "LatePhase>MemberApplySgd",
      {Variable(var), Scalar<int32_t>(0), Scalar<T>(T(1)), zero, this->Random({9}, 0.5, 1)}};
  call.with_readers = true;
  const KernelResult result = this->ExpectSame(call);
  ASSERT_EQ(result.readers.size(), 1u);
  EXPECT_EQ(Values(result.readers[0]), Values(var));
  EXPECT_NE(Values(result.variables[0]), Values(var));
}

TYPED_TEST(GpuOp, EmptyInputsGiveEmptyOutputs) {
  using Wide = typename TestFixture::Wide;
  const int64_t H = 3, K = 2;
  this->ExpectSame({"LatePhase>Rank1Lstm",
                    {this->Random({0, 2, 4}), this->Random({2, H}), this->Random({2, H}),
                     this->Random({4, 4 * H}), this->Random({H, 4 * H}), this->Random({4 * H}),
                     this->Random({K, H}), this->Random({K, 4 * H}), Scalar<int32_t>(0)}});
  this->ExpectSame({"LatePhase>BatchNorm",
                    {this->Random({0, 3}), this->template Random<Wide>({K, 3}),
                     this->template Random<Wide>({K, 3}), this->template Random<Wide>({K, 3}),
                     this->template Random<Wide>({K, 3}, 0.5, 1), Scalar<int32_t>(0)}});
  this->ExpectSame(
      {"LatePhase>SoftmaxCrossEntropy",
       {this->Random({0, 4}), this->Random({4, 5}), this->Random({5}), this->Indices({0}, 5)}});
}

// The checks are the CPU's, before anything is launched or written.
TEST(GpuOpErrors, BadInputIsRefusedInTheSameWords) {
  Tensor var(tensorflow::DT_FLOAT, TensorShape({2, 3}));
  var.flat<float>().setConstant(1);
  Tensor grad(tensorflow::DT_FLOAT, TensorShape({4}));
  grad.flat<float>().setConstant(1);
  const Tensor one = Scalar(1.0f);
  for (const KernelCall& call :
       {KernelCall{"LatePhase>MemberApplySgd", {Variable(var), Scalar<int32_t>(0), one, one, grad}},
        KernelCall{"LatePhase>MemberApplySgd", {Variable(var), Scalar<int32_t>(2), one, one, grad}},
        KernelCall{"LatePhase>MemberApplySgd",
                   {Variable(var), Scalar<int32_t>(0), Scalar(-1.0f), one, grad}},
        KernelCall{"LatePhase>ReadMember",
                   {Variable(var), Scalar<int32_t>(-1)},
                   {{"dtype", Attr(tensorflow::DT_FLOAT)}}}}) {
    const KernelResult cpu = RunKernel("CPU", call), gpu = RunKernel("GPU", call);
    EXPECT_THAT(gpu.status,
                StatusIs(absl::StatusCode::kInvalidArgument, std::string(cpu.status.message())));
    EXPECT_EQ(Values(gpu.variables[0]), Values(var));
  }
}

TEST(GpuOpErrors, WhatFailsOnTheGpuIsAStatus) {
  const int64_t before = std::exchange(test_util::gpu_products, 0);
  Tensor features(tensorflow::DT_FLOAT, TensorShape({2, 3})),
      kernel(tensorflow::DT_FLOAT, TensorShape({3, 4})),
      bias(tensorflow::DT_FLOAT, TensorShape({4})), labels(tensorflow::DT_INT32, TensorShape({2}));
  features.flat<float>().setZero();
  kernel.flat<float>().setZero();
  bias.flat<float>().setZero();
  labels.flat<int32_t>().setZero();
  const KernelResult result =
      RunKernel("GPU", {"LatePhase>SoftmaxCrossEntropy", {features, kernel, bias, labels}});
  test_util::gpu_products = before;
  EXPECT_EQ(result.status,
            absl::InternalError("LatePhase>SoftmaxCrossEntropy: HostMatmul: refused"));
}

}  // namespace
}  // namespace late_phase
