// Several workers against one: what they tell each other, the weights they train, and what they
// leave in a checkpoint.
#include "optimizers/workers.h"

#include <filesystem>
#include <mutex>

#include "gmock/gmock.h"
#include "ops/worker_sum.h"
#include "optimizers/run.h"
#include "tensorflow/cc/framework/gradients.h"
#include "tensorflow/cc/ops/nn_ops.h"
#include "tensorflow/cc/ops/resource_variable_ops.h"
#include "tensorflow/cc/ops/state_ops.h"
#include "tests/optimizers/product_problem.h"
#include "tests/support/local_workers.h"
#include "tests/support/status_matchers.h"

namespace late_phase {
namespace {

namespace fs = std::filesystem;
using namespace test_util;  // NOLINT(google-build-using-namespace)
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What each worker has at the end, by task.
template <typename T>
class ByTask {
 public:
  explicit ByTask(int count) : values_(count) {}
  void Set(const Workers& workers, T value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_[workers.share().task] = std::move(value);
  }
  const T& operator[](size_t task) const { return values_[task]; }
  size_t size() const { return values_.size(); }

 private:
  std::mutex mutex_;
  std::vector<T> values_;
};

TEST(WorkersTest, NumbersAreAddedUp) {
  OnWorkers(3, kThreads, [](Workers* workers) {
    const auto task = static_cast<double>(workers->share().task);
    // Lengths vary from sum to sum.
    for (const size_t length : {1, 5, 1000, 2}) {
      std::vector<double> numbers(length, 0.5 + task);
      ASSERT_THAT(workers->Sum(absl::MakeSpan(numbers)), IsOk());
      EXPECT_EQ(numbers, std::vector<double>(length, 4.5));
    }
    int64_t largest = workers->first() ? int64_t{1} << 62 : 0;
    ASSERT_THAT(workers->Sum(absl::MakeSpan(&largest, 1)), IsOk());
    EXPECT_EQ(largest, int64_t{1} << 62);
  });
}

TEST(WorkersTest, TextsReachEveryWorker) {
  OnWorkers(3, kThreads, [](Workers* workers) {
    const std::string own(3 * workers->share().task,
                          static_cast<char>('a' + workers->share().task));
    TF_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> all, workers->Gather(own));
    EXPECT_THAT(all, ElementsAre("", "bbb", "cccccc"));
    TF_ASSERT_OK_AND_ASSIGN(const std::string first,
                            workers->Broadcast(workers->first() ? "from the first" : "ignored"));
    EXPECT_EQ(first, "from the first");
    EXPECT_THAT(workers->OfFirst(absl::OkStatus()), IsOk());
    EXPECT_THAT(
        workers->OfFirst(workers->first() ? absl::NotFoundError("no such file") : absl::OkStatus()),
        StatusIs(absl::StatusCode::kNotFound, "no such file"));
  });
}

TEST(WorkersTest, AnUnusableAddressIsNamed) {
  EXPECT_THAT(Workers::Open({{"127.0.0.1:1", "nonsense"}, 0}, kThreads),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("Received: nonsense")));
}

// L_i = ½ w_i² s with s = Σ_j w_j x_j: the gradient of Σ_i L_i by w_i is w_i s + x_i Σ_j ½ w_j².
TEST(WorkersTest, SumsAreDifferentiable) {
  OnWorkers(2, kThreads, [](Workers* workers) {
    const tensorflow::Scope scope = tensorflow::Scope::NewRootScope();
    const double w = workers->first() ? 2 : 3, x = workers->first() ? 5 : 7;
    const Output weight = tf_ops::Const(scope, {w}, {1});
    const Output s =
        workers->Sum(scope, tf_ops::Mul(scope, weight, tf_ops::Const(scope, {x}, {1})));
    const Output loss = tf_ops::Mul(
        scope, tf_ops::Mul(scope, tf_ops::Square(scope, weight), tf_ops::Const(scope, 0.5)), s);
    std::vector<Output> gradients;
    ASSERT_THAT(tensorflow::AddSymbolicGradients(scope, {loss}, {weight}, &gradients), IsOk());
    tensorflow::GraphDef graph;
    ASSERT_THAT(scope.ToGraphDef(&graph), IsOk());
    TF_ASSERT_OK_AND_ASSIGN(std::unique_ptr<tensorflow::Session> session, workers->OpenSession());
    ASSERT_THAT(session->Create(graph), IsOk());
    std::vector<Tensor> values;
    ASSERT_THAT(session->Run({}, {gradients[0].name()}, {}, &values), IsOk());
    EXPECT_DOUBLE_EQ(values[0].flat<double>()(0), w * 31 + x * 6.5);
  });
}

struct TrainCase {
  std::string name;
  Case problem;
};

class TrainTest : public testing::TestWithParam<TrainCase> {};

// Minibatch t as this worker has it: the mean over the workers is the joint one's.
Values OwnMinibatch(const Share& share, int64_t t) {
  Values x = Minibatch(t);
  const double away =
      static_cast<double>(share.task) - 0.5 * static_cast<double>(share.workers - 1);
  for (double& value : x) value += 0.1 * away;
  return x;
}

constexpr int64_t kSteps = 20;

std::map<std::string, Tensor> TrainWith(Workers* workers, const Case& c) {
  Problem problem(c, workers);
  EXPECT_THAT(problem.status, IsOk());
  EXPECT_THAT(problem.run->Initialize(), IsOk());
  for (int64_t t = 0; t < kSteps; ++t) {
    const Share share = workers == nullptr ? Share() : workers->share();
    EXPECT_THAT(problem.run->Step({{"x", MakeTensor(OwnMinibatch(share, t))}}), IsOk());
  }
  return problem.State();
}

TEST_P(TrainTest, SeveralWorkersEqualOne) {
  const std::map<std::string, Tensor> one = TrainWith(nullptr, GetParam().problem);
  for (const int count : {2, 4}) {
    ByTask<std::map<std::string, Tensor>> several(count);
    OnWorkers(count, kThreads, [&](Workers* workers) {
      several.Set(*workers, TrainWith(workers, GetParam().problem));
    });
    for (const auto& [name, value] : one) {
      for (size_t task = 0; task < several.size(); ++task) {
        const Tensor& other = several[task].at(name);
        // The same bits on all of them.
        EXPECT_EQ(other.tensor_data(), several[0].at(name).tensor_data()) << name;
        if (value.dtype() != tensorflow::DT_DOUBLE) {
          EXPECT_EQ(other.tensor_data(), value.tensor_data()) << name;
          continue;
        }
        for (int64_t i = 0; i < value.NumElements(); ++i) {
          EXPECT_NEAR(other.flat<double>()(i), value.flat<double>()(i), 1e-9) << name;
        }
      }
    }
  }
}

std::vector<TrainCase> TrainCases() {
  std::vector<TrainCase> cases;
  for (const MemberRead read : {MemberRead::kRow, MemberRead::kStack}) {
    const std::string how = read == MemberRead::kRow ? "Rows" : "Stacks";
    LatePhaseOptions options = Options(3, 5, 0.5);
    options.sigma = 0.2;
    options.swa_start = 14;
    options.clip_norm = 0.7;
    cases.push_back(
        {how + "OfMembers", {options, UpdateRule::Adam(0.05), UpdateRule::Momentum(0.05), read}});
    // Neither Adam nor a gradient that is always clipped knows how long the gradient was.
    options.clip_norm = 0;
    cases.push_back({how + "OfMembersUnclipped",
                     {options, UpdateRule::Momentum(0.02), UpdateRule::Momentum(0.02), read}});
    LatePhaseOptions accumulation = Options(1, 5);
    accumulation.cycle = 4;
    cases.push_back(
        {how + "Accumulated", {accumulation, UpdateRule::Sgd(0.1), UpdateRule::Sgd(0.1), read}});
    cases.push_back(
        {how + "Alone", {Options(1, 0), UpdateRule::Sgd(0.1), UpdateRule::Sgd(0.1), read}});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Problems, TrainTest, testing::ValuesIn(TrainCases()),
                         [](const auto& info) { return info.param.name; });

TEST(WorkersTest, AllStopAfterTheSameStep) {
  ByTask<int64_t> ends(3);
  OnWorkers(3, kThreads, [&](Workers* workers) {
    Problem problem({Options(1, 0)}, workers);
    ASSERT_THAT(problem.status, IsOk());
    ASSERT_THAT(problem.run->Initialize(), IsOk());
    while (!problem.run->told_to_stop() && problem.run->step() < 20) {
      // The second worker is asked after it has taken four steps.
      if (workers->share().task == 1 && problem.run->step() == 4) problem.run->TellToStop();
      ASSERT_THAT(problem.run->Step({{"x", MakeTensor(Minibatch(0))}}), IsOk());
    }
    ends.Set(*workers, problem.run->step());
  });
  for (size_t task = 0; task < ends.size(); ++task) EXPECT_EQ(ends[task], 5);
}

// A model that keeps the sum of all it was fed, row by row, in a state that is divided among the
// workers.
struct RowSums {
  static constexpr int64_t kRows = 4;

  explicit RowSums(Workers* workers)
      : scope(tensorflow::Scope::NewRootScope()),
        late_phase(scope, Options(1, 0), tensorflow::DT_DOUBLE, workers),
        share(workers == nullptr ? Share() : workers->share()) {
    const Output w = late_phase.AddBase("w", MakeTensor(Values(kD, 1)));
    const Output sums = late_phase.AddDividedState("sums", tensorflow::DT_DOUBLE, {kRows, kD});
    const Output x = tf_ops::Placeholder(scope.WithOpName("x"), tensorflow::DT_DOUBLE);
    if (!scope.ok()) {
      status = scope.status();
      return;
    }
    const Output loss = tf_ops::Mean(scope, tf_ops::Mul(scope, x, w), {0, 1});
    const auto add = tf_ops::AssignAddVariableOp(scope, sums, x);
    status = late_phase.Minimize(loss, UpdateRule::Sgd(0.1), UpdateRule::Sgd(0.1), {add.operation});
    if (!status.ok()) return;
    absl::StatusOr<std::unique_ptr<Run>> made = Run::Create(late_phase, kThreads);
    status = made.status();
    if (status.ok()) run = *std::move(made);
  }

  // Row r of the joint minibatch t is r + t.
  absl::Status Step() {
    Tensor x(tensorflow::DT_DOUBLE, {share.Size(kRows), kD});
    for (int64_t i = 0; i < x.NumElements(); ++i) {
      x.flat<double>()(i) = static_cast<double>(share.Begin(kRows) + i / kD + run->step());
    }
    return run->Step({{"x", x}}).status();
  }

  tensorflow::Scope scope;
  LatePhase late_phase;
  Share share;
  absl::Status status;
  std::unique_ptr<Run> run;
};

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  const std::string folder_ = testing::TempDir() + "/workers";

  // Takes steps up to `until`, from the checkpoint if there is one, and writes one.
  void Train(int count, int64_t until) {
    auto work = [&](Workers* workers) {
      RowSums model(workers);
      ASSERT_THAT(model.status, IsOk());
      // Only the first worker knows the folder.
      const bool first = workers == nullptr || workers->first();
      const std::string folder = first ? folder_ : "/nowhere";
      if (until > 2) {
        ASSERT_THAT(model.run->Restore(folder), IsOk());
      } else {
        ASSERT_THAT(model.run->Initialize(), IsOk());
      }
      while (model.run->step() < until) ASSERT_THAT(model.Step(), IsOk());
      ASSERT_THAT(model.run->Save(folder), IsOk());
    };
    count == 1 ? work(nullptr) : OnWorkers(count, kThreads, work);
  }

  std::map<std::string, Tensor> Saved() {
    const absl::StatusOr<CheckpointState> state = ReadCheckpoint(*LatestCheckpoint(folder_));
    EXPECT_THAT(state, IsOk());
    return state->variables;
  }
};

TEST_F(CheckpointTest, AnyNumberOfWorkersResumesWhatAnyOtherHasSaved) {
  Train(1, 2);
  Train(1, 8);
  const std::map<std::string, Tensor> one = Saved();
  fs::remove_all(folder_);
  Train(2, 2);
  Train(4, 4);
  Train(1, 6);
  Train(2, 8);
  const std::map<std::string, Tensor> several = Saved();
  ASSERT_EQ(several.size(), one.size());
  for (const auto& [name, value] : one) {
    ASSERT_EQ(several.at(name).shape(), value.shape()) << name;
    if (value.dtype() != tensorflow::DT_DOUBLE) {
      EXPECT_EQ(several.at(name).tensor_data(), value.tensor_data()) << name;
      continue;
    }
    for (int64_t i = 0; i < value.NumElements(); ++i) {
      EXPECT_NEAR(several.at(name).flat<double>()(i), value.flat<double>()(i), 1e-9) << name;
    }
  }
  // 0 + r, 1 + r, …, 7 + r
  for (int64_t r = 0; r < RowSums::kRows; ++r) {
    EXPECT_EQ(one.at("sums").matrix<double>()(r, 0), static_cast<double>(28 + 8 * r));
  }
}

TEST_F(CheckpointTest, AMissingCheckpointIsAnErrorOnEveryWorker) {
  OnWorkers(2, kThreads, [&](Workers* workers) {
    RowSums model(workers);
    ASSERT_THAT(model.status, IsOk());
    EXPECT_THAT(model.run->Restore(folder_),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("no checkpoint in")));
  });
}

TEST(WorkersTest, RowsThatDoNotDivideAreRefused) {
  OnWorkers(3, kThreads, [](Workers* workers) {
    EXPECT_THAT(RowSums(workers).status,
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("must be a multiple of 3, the workers")));
  });
}

}  // namespace
}  // namespace late_phase
