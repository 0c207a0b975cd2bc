// Which matrix-product library for the LSTM? Times the three products of a step
// (docs/benchmarks.md) through each candidate, two threads at once, one product per thread. Not
// part of any test or of the library: needs libopenblas-dev and libdnnl-dev.
//
//   bazel run //tools/bench:bench_matmul
#include <cblas.h>
#include <omp.h>

#include <Eigen/Core>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <dnnl.hpp>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "kernels/cpu/matmul.h"

extern "C" void openblas_set_num_threads(int);

namespace late_phase {
namespace {

constexpr int kThreads = 2, kRepeats = 40, kCalls = 10;

// C [M,N] = A·B, A stored [K,M] if transposed. B is the weights, the same in every call, for the
// first two.
struct Product {
  const char* name;
  int64_t M, K, N;
  bool transpose_a;
};
constexpr Product kProducts[] = {{"h R        [64,500]x[500,2000]", 64, 500, 2000, false},
                                 {"dz R^T     [64,2000]x[2000,500]", 64, 2000, 500, false},
                                 {"h^T dz     [500,128]x[128,2000]", 500, 128, 2000, true}};

using Array = std::vector<float>;

struct Operands {
  explicit Operands(const Product& p) : a(p.M * p.K), b(p.K * p.N), c(p.M * p.N) {
    std::mt19937 engine(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (float& x : a) x = uniform(engine);
    for (float& x : b) x = uniform(engine);
  }
  Array a, b, c;
};

using Call = std::function<void(Operands&)>;

Call OpenBlas(const Product& p, const Operands&) {
  return [p](Operands& o) {
    cblas_sgemm(CblasRowMajor, p.transpose_a ? CblasTrans : CblasNoTrans, CblasNoTrans, p.M, p.N,
                p.K, 1, o.a.data(), p.transpose_a ? p.M : p.K, o.b.data(), p.N, 0, o.c.data(), p.N);
  };
}

// B is packed in the library's own format beforehand if it is a weight.
Call OneDnn(const Product& p, const Operands& example) {
  using namespace dnnl;
  using Tag = memory::format_tag;
  const auto f32 = memory::data_type::f32;
  const engine cpu(engine::kind::cpu, 0);
  const memory::desc a({p.M, p.K}, f32, p.transpose_a ? Tag::ba : Tag::ab),
      plain({p.K, p.N}, f32, Tag::ab), b({p.K, p.N}, f32, p.transpose_a ? Tag::ab : Tag::any),
      c({p.M, p.N}, f32, Tag::ab);
  const matmul::primitive_desc plan(matmul::desc(a, b, c), cpu);
  memory packed(plan.weights_desc(), cpu);
  stream order(cpu);
  memory unpacked(plain, cpu, const_cast<float*>(example.b.data()));
  reorder(unpacked, packed).execute(order, unpacked, packed);
  order.wait();
  return [=](Operands& o) {
    omp_set_num_threads(1);
    stream mine(cpu);
    matmul(plan).execute(
        mine, {{DNNL_ARG_SRC, memory(a, cpu, o.a.data())},
               {DNNL_ARG_WEIGHTS, p.transpose_a ? memory(plain, cpu, o.b.data()) : packed},
               {DNNL_ARG_DST, memory(c, cpu, o.c.data())}});
    mine.wait();
  };
}

Call EigenProduct(const Product& p, const Operands&) {
  using Matrix = Eigen::Map<Eigen::Matrix<float, -1, -1, Eigen::RowMajor>>;
  return [p](Operands& o) {
    Matrix b(o.b.data(), p.K, p.N), c(o.c.data(), p.M, p.N);
    if (p.transpose_a) {
      c.noalias() = Matrix(o.a.data(), p.K, p.M).transpose() * b;
    } else {
      c.noalias() = Matrix(o.a.data(), p.M, p.K) * b;
    }
  };
}

// kernels/cpu/matmul.h, which is what the LSTM runs: weights packed beforehand; dz packed in the
// call, as there.
Call Xsmm(const Product& p, const Operands& example) {
  auto pack = [p](const Array& b, Array* packed) {
    for (int64_t panel = 0; panel < PanelCount(p.N); ++panel) {
      PackPanel(b.data(), p.N, p.K, p.N, panel, packed->data() + PanelOffset(p.K, panel));
    }
  };
  auto weights = std::make_shared<Array>(p.K * p.N);
  pack(example.b, weights.get());
  const Matmul<float> product(
      {p.M, p.K, p.N, p.transpose_a ? p.M : p.K, p.N, p.transpose_a, false});
  return [=](Operands& o) {
    if (!p.transpose_a) return product.Run(o.a.data(), weights->data(), o.c.data());
    static thread_local Array packed;
    packed.resize(p.K * p.N);
    pack(o.b, &packed);
    product.Run(o.a.data(), packed.data(), o.c.data());
  };
}

// Seconds of kCalls calls on every thread at once.
double Seconds(const Call& call, std::vector<Operands>* operands) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (Operands& mine : *operands) {
    threads.emplace_back([&call, &mine] {
      for (int i = 0; i < kCalls; ++i) call(mine);
    });
  }
  for (auto& thread : threads) thread.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace
}  // namespace late_phase

int main() {
  using namespace late_phase;
  openblas_set_num_threads(1);
  const std::pair<const char*, Call (*)(const Product&, const Operands&)> libraries[] = {
      {"OpenBLAS", OpenBlas}, {"oneDNN", OneDnn}, {"Eigen", EigenProduct}, {"libxsmm", Xsmm}};
  std::printf("%-34s", "GFLOP/s, two threads");
  for (const auto& [name, make] : libraries) std::printf("%10s", name);
  std::printf("\n");
  for (const Product& p : kProducts) {
    Operands expected(p);
    OpenBlas(p, expected)(expected);
    std::vector<Call> calls;
    for (const auto& [name, make] : libraries) {
      Operands mine(p);
      calls.push_back(make(p, mine));
      calls.back()(mine);
      for (size_t i = 0; i < mine.c.size(); ++i) {
        if (std::abs(mine.c[i] - expected.c[i]) > 1e-3f) {
          std::printf("%s is wrong\n", name);
          return 1;
        }
      }
    }
    // In turn, so that a busy machine affects all of them; the best of each.
    std::vector<Operands> operands(kThreads, Operands(p));
    std::vector<double> best(calls.size(), 1e9);
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      for (size_t i = 0; i < calls.size(); ++i)
        best[i] = std::min(best[i], Seconds(calls[i], &operands));
    }
    std::printf("%-34s", p.name);
    for (double seconds : best)
      std::printf("%10.0f", 2.0 * p.M * p.K * p.N * kThreads * kCalls / seconds * 1e-9);
    std::printf("\n");
  }
  return 0;
}
