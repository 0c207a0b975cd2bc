// Checkpoints of a run: resumed, forked, refused, and whole after kill -9.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optimizers/disk.h"
#include "optimizers/run.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tests/optimizers/product_problem.h"
#include "tests/support/status_matchers.h"

namespace late_phase {
namespace {

using test_util::ExpectValue;
using test_util::IsOk;
using test_util::StatusIs;
using ::testing::_;
using ::testing::EndsWith;
using ::testing::HasSubstr;

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;
using tensorflow::Tensor;
using test_util::Case;
using test_util::Difference;
using test_util::kD;
using test_util::MakeTensor;
using test_util::Options;
using test_util::Problem;
using test_util::Values;

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest()
      : dir_(std::filesystem::path(::testing::TempDir()) /
             ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(dir_);
  }
  std::string LatestPath() const { return LatestCheckpoint(dir_).value_or("none"); }
  Case Full() const {
    Case c{Options(3, 5, 1.0 / 3),
           UpdateRule::Adam(Schedule::PiecewiseLinear({{0, 0.05}, {20, 0.01}})).WithDecay(0.01),
           UpdateRule::Momentum(0.05), MemberRead::kRow};
    c.options.sigma = 0.3;
    c.options.swa_start = 14;
    c.options.clip_norm = 1;
    return c;
  }
  std::filesystem::path dir_;
};

TEST_F(CheckpointTest, ResumeIsBitForBitAtEveryStep) {
  // Cycles that run on, and those that epochs of seven minibatches cut short.
  for (const int64_t restart_every : {0, 7}) {
    Case c = Full();
    c.options.restart_every = restart_every;
    std::filesystem::remove_all(dir_);
    Problem whole(c);
    ASSERT_THAT(whole.run->Initialize(), IsOk());
    whole.Train(23);
    const auto expected = whole.State();
    Problem first(c);
    ASSERT_THAT(first.run->Initialize(), IsOk());
    for (int64_t n = 0; n < 23; ++n) {
      first.Train(n);
      ASSERT_THAT(first.run->Save(dir_), IsOk());
      Problem second(c);
      TF_ASSERT_OK_AND_ASSIGN(const std::string note, second.run->Restore(dir_));
      EXPECT_EQ(note, "");
      EXPECT_EQ(second.run->step(), n);
      second.Train(23);
      for (const auto& [name, tensor] : second.State()) {
        EXPECT_EQ(tensor.tensor_data(), expected.at(name).tensor_data())
            << name << ", resumed at " << n;
      }
    }
  }
}

TEST_F(CheckpointTest, AnotherConfigurationNamesTheFirstDifference) {
  Problem p(Full());
  ASSERT_THAT(p.run->Initialize(), IsOk());
  p.Train(3);
  ASSERT_THAT(p.run->Save(dir_), IsOk());
  auto complaint = [&](const Case& c) {
    Problem other(c);
    return std::string(other.run->Restore(dir_).status().message());
  };
  Case c = Full();
  c.options.members = 4;
  EXPECT_EQ(complaint(c), "`members` must be 3, as in the checkpoint. Received: members=4");
  c = Full();
  c.base = UpdateRule::Sgd(0.1);
  EXPECT_THAT(complaint(c), HasSubstr("`base` must be adam"));
  // Runs of one process all have the same threads: as if another process had written it.
  TF_ASSERT_OK_AND_ASSIGN(CheckpointState state, ReadCheckpoint(LatestPath()));
  state.threads = 1;
  ++state.step;
  ASSERT_THAT(WriteCheckpoint(dir_, state), IsOk());
  Problem threads(Full());
  TF_ASSERT_OK_AND_ASSIGN(const std::string note, threads.run->Restore(dir_));
  EXPECT_THAT(note, HasSubstr("written with 1 threads, this run has 2"));
}

TEST_F(CheckpointTest, NoOrDamagedCheckpointIsAnError) {
  Problem p(Full());
  EXPECT_THAT(p.run->Restore(dir_), StatusIs(absl::StatusCode::kNotFound));
  std::filesystem::create_directories(dir_ / "step-000000000003");
  const absl::Status status = p.run->Restore(dir_).status();
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a readable checkpoint")));

  // Cut short.
  std::filesystem::remove_all(dir_);
  ASSERT_THAT(p.run->Initialize(), IsOk());
  ASSERT_THAT(p.run->Save(dir_), IsOk());
  const std::string path = LatestPath();
  std::filesystem::resize_file(path + "/state.data-00000-of-00001", 20);
  const absl::Status cut = p.run->Restore(dir_).status();
  EXPECT_THAT(cut, StatusIs(absl::StatusCode::kInvalidArgument,
                            HasSubstr("not a readable checkpoint: " + path)));
}

// Its last 48 bytes say where two blocks are, as numbers of up to ten bytes, before any checksum.
TEST_F(CheckpointTest, AnIndexThatAsksForTooMuchMemoryIsRefused) {
  Problem p(Full());
  ASSERT_THAT(p.run->Initialize(), IsOk());
  ASSERT_THAT(p.run->Save(dir_), IsOk());
  const std::string path = LatestPath(), file = path + "/state.index";
  std::string index;
  ASSERT_EQ(ReadWholeFile(file, &index), std::error_code());
  for (const size_t begin : {48, 46, 45, 44}) {
    std::string damaged = index;
    damaged.replace(index.size() - begin, 9, "\xff\xff\xff\xff\xff\xff\xff\xff\x7f");
    ASSERT_EQ(ReplaceFile(file, damaged), std::error_code());
    EXPECT_THAT(p.run->Restore(dir_),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "not a readable checkpoint: " + path + ": damage at the end of its index"))
        << begin;
  }
  ASSERT_EQ(ReplaceFile(file, index), std::error_code());
  EXPECT_THAT(p.run->Restore(dir_), IsOk());
}

TEST_F(CheckpointTest, StartingFromATrainedModelTakesTheWeightsAlone) {
  Case base = Full();
  base.options.members = 1;
  base.options.cycle = 1;
  Problem trained(base);
  ASSERT_THAT(trained.run->Initialize(), IsOk());
  trained.Train(9);
  ASSERT_THAT(trained.run->Save(dir_), IsOk());
  Problem p(Full());
  ASSERT_THAT(p.run->StartFrom(dir_), IsOk());
  EXPECT_EQ(p.run->step(), 0);
  const auto before = trained.State(), after = p.State();
  EXPECT_EQ(after.at("theta").tensor_data(), before.at("theta").tensor_data());
  for (int64_t i = 0; i < 3 * kD; ++i)
    EXPECT_EQ(after.at("phi").flat<double>()(i), before.at("phi").flat<double>()(i % kD));
  for (int64_t i = 0; i < kD; ++i) EXPECT_EQ(after.at("theta/m").flat<double>()(i), 0);
}

// Once they are spawned, the members of the other run are one model: their mean. Both runs may have
// members or not, in any part.
TEST_F(CheckpointTest, StartingFromATrainedModelCollapsesItsMembers) {
  struct Graph {
    Graph(int64_t members, bool late, bool constant = true)
        : scope(tensorflow::Scope::NewRootScope()),
          late_phase(scope, test_util::Options(members, 2), tensorflow::DT_DOUBLE) {
      Tensor head(tensorflow::DT_DOUBLE, {2, kD});
      head.flat<double>().setConstant(1.0);
      Tensor row(tensorflow::DT_DOUBLE, {1, kD}), carried(tensorflow::DT_DOUBLE, {3});
      row.flat<double>().setConstant(2.0);
      carried.flat<double>().setConstant(7.0);
      const Output w = late ? late_phase.AddMembers("head", head, MemberRead::kRow)
                            : late_phase.AddBase("head", head);
      const Output own =
          late_phase.AddMembers("own", MakeTensor(Values(kD, 1.0)), MemberRead::kRow);
      // Running statistics without members are stacks of one row.
      late ? late_phase.AddMemberState("mean", MakeTensor(Values(kD, 2.0)))
           : late_phase.AddState("mean", row, StateKind::kModel);
      late_phase.AddState("carried", carried);
      late_phase.AddState("letters", MakeTensor({constant ? 1.0 : 2.0}), StateKind::kConstant);
      status = late_phase.Minimize(
          tf_ops::Add(scope, tf_ops::Sum(scope, tf_ops::Square(scope, w), {0, 1}),
                      tf_ops::Sum(scope, tf_ops::Square(scope, own), 0)),
          UpdateRule::Momentum(0.1), UpdateRule::Momentum(0.1));
      if (!status.ok()) return;
      auto made = late_phase::Run::Create(late_phase, test_util::kThreads);
      status = made.status();
      if (status.ok()) run = *std::move(made);
    }
    std::map<std::string, Tensor> State() {
      std::vector<std::string> reads;
      for (const auto& saved : late_phase.saved()) reads.push_back(saved.read);
      std::vector<Tensor> values = ExpectValue(run->Fetch({}, reads));
      std::map<std::string, Tensor> state;
      for (size_t i = 0; i < reads.size(); ++i) state[late_phase.saved()[i].name] = values[i];
      return state;
    }
    tensorflow::Scope scope;
    LatePhase late_phase;
    absl::Status status;
    std::unique_ptr<late_phase::Run> run;
  };
  auto stack = [](std::initializer_list<double> rows, int64_t size) {
    Tensor tensor(tensorflow::DT_DOUBLE, {static_cast<int64_t>(rows.size()), size});
    for (int64_t i = 0; i < tensor.NumElements(); ++i) {
      tensor.flat<double>()(i) = rows.begin()[i / size] + 0.25 * (i % size);
    }
    return tensor;
  };
  for (const int64_t steps : {2, 4}) {  // at T0, where row 0 is the model; after it
    std::filesystem::remove_all(dir_);
    Graph trained(3, true);
    ASSERT_THAT(trained.status, IsOk());
    ASSERT_THAT(trained.run->Initialize(), IsOk());
    for (int64_t t = 0; t < steps; ++t) ASSERT_THAT(trained.run->Step({}), IsOk());
    Tensor head(tensorflow::DT_DOUBLE, {3, 2, kD});
    ASSERT_TRUE(head.CopyFrom(stack({1, 2, 6}, 2 * kD), {3, 2, kD}));
    ASSERT_THAT(
        trained.run->Assign(
            {{"head", head}, {"own", stack({1, 2, 6}, kD)}, {"mean", stack({1, 2, 6}, kD)}}),
        IsOk());
    ASSERT_THAT(trained.run->Save(dir_), IsOk());
    const double model = steps == 2 ? 1 : 3;
    for (const int64_t members : {1, 3, 5}) {
      for (const bool late : {false, true}) {
        SCOPED_TRACE(::testing::Message() << steps << " " << members << late);
        Graph p(members, late);
        ASSERT_THAT(p.run->StartFrom(dir_), IsOk());
        EXPECT_EQ(p.run->step(), 0);
        const auto state = p.State();
        for (const auto& [name, size] :
             std::map<std::string, int64_t>{{"head", 2 * kD}, {"own", kD}, {"mean", kD}}) {
          const auto values = state.at(name).flat<double>();
          EXPECT_EQ(values.size(), (late || name == "own" ? members : 1) * size);
          for (int64_t i = 0; i < values.size(); ++i) {
            EXPECT_EQ(values(i), model + 0.25 * (i % size)) << name << i;
          }
        }
        EXPECT_EQ(state.at("carried").flat<double>()(0), 7);
        EXPECT_EQ(state.at("own/momentum").flat<double>()(0), 0);
      }
    }
    Graph other(1, true, /*constant=*/false);
    EXPECT_THAT(other.run->StartFrom(dir_),
                StatusIs(_, HasSubstr("`letters` must be what it is in the checkpoint")));
  }
}

// What is a weight is known from its declaration, not from its name.
TEST_F(CheckpointTest, StartingFromATrainedModelTakesWeightsWithFoldersInTheirNames) {
  auto make = [](double initial,
                 std::string* name) -> absl::StatusOr<std::unique_ptr<late_phase::Run>> {
    auto scope = tensorflow::Scope::NewRootScope();
    LatePhase graph(scope, {}, tensorflow::DT_DOUBLE);
    const Output w = graph.AddBase("layer/w", MakeTensor(Values(kD, initial)));
    *name = w.name();
    TF_RETURN_IF_ERROR(
        graph.Minimize(tf_ops::Sum(scope, w, 0), UpdateRule::Momentum(0.1), UpdateRule::Sgd(0.1)));
    return late_phase::Run::Create(graph, test_util::kThreads);
  };
  std::string name;
  TF_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<late_phase::Run> trained, make(5.0, &name));
  ASSERT_THAT(trained->Initialize(), IsOk());
  ASSERT_THAT(trained->Save(dir_), IsOk());
  TF_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<late_phase::Run> fresh, make(1.0, &name));
  ASSERT_THAT(fresh->StartFrom(dir_), IsOk());
  TF_ASSERT_OK_AND_ASSIGN(std::vector<Tensor> w, fresh->Fetch({}, {name}));
  EXPECT_EQ(Difference(w[0], Values(kD, 5.0)), 0);
}

// Until T0 a model with one member and one with K are the same: a fork there, or before, equals a
// run of its own, clipping, slots and SWA included.
TEST_F(CheckpointTest, AForkEqualsARunOfItsOwn) {
  for (const bool copy_slots : {false, true}) {
    for (const MemberRead read : {MemberRead::kRow, MemberRead::kStack}) {
      for (const int64_t at : {0, 3, 5}) {
        std::filesystem::remove_all(dir_);
        Case many = Full(), one = Full();
        many.read = one.read = read;
        many.options.copy_slots = copy_slots;
        many.options.clip_norm = 0.1;
        one.options = LatePhaseOptions();
        one.options.swa_start = many.options.swa_start;
        one.options.clip_norm = many.options.clip_norm;
        Problem whole(many), trunk(one), fork(many);
        ASSERT_THAT(whole.run->Initialize(), IsOk());
        whole.Train(23);
        ASSERT_THAT(trunk.run->Initialize(), IsOk());
        trunk.Train(at);
        ASSERT_THAT(trunk.run->Save(dir_), IsOk());
        ASSERT_THAT(fork.run->Fork(dir_), IsOk());
        EXPECT_EQ(fork.run->step(), at);
        fork.Train(23);
        const auto expected = whole.State();
        for (const auto& [name, tensor] : fork.State()) {
          EXPECT_EQ(tensor.tensor_data(), expected.at(name).tensor_data())
              << name << ", forked at " << at;
        }
      }
    }
  }
}

TEST_F(CheckpointTest, AForkAfterT0IsRefused) {
  Case one = Full();
  one.options = LatePhaseOptions();
  one.options.swa_start = 14;
  Problem trunk(one), fork(Full());
  ASSERT_THAT(trunk.run->Initialize(), IsOk());
  trunk.Train(6);
  ASSERT_THAT(trunk.run->Save(dir_), IsOk());
  EXPECT_THAT(
      fork.run->Fork(dir_),
      StatusIs(
          _, "a fork must begin no later than `start`. Received: a checkpoint of step 6, start=5"));
  EXPECT_THAT(fork.run->Fork(dir_ / "nowhere"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(CheckpointTest, WeightsThatAreNotFiniteAreNotSaved) {
  Problem p(Full());
  ASSERT_THAT(p.run->Initialize(), IsOk());
  ASSERT_THAT(p.run->Save(dir_), IsOk());
  p.Train(1);
  Values broken(kD, 1.0);
  broken[3] = std::nan("");
  ASSERT_THAT(p.run->Assign({{"theta", MakeTensor(broken)}}), IsOk());
  const absl::Status status = p.run->Save(dir_);
  EXPECT_THAT(status,
              StatusIs(_, "`theta` must be finite to be saved. Received: inf or NaN at step 1"));
  EXPECT_THAT(LatestPath(), EndsWith("step-000000000000"));
}

TEST_F(CheckpointTest, AKilledWriterLeavesAWholeCheckpoint) {
  int64_t last = 0;
  for (int round = 0; round < 8; ++round) {
    std::filesystem::remove_all(dir_);
    const std::string dir = dir_;
    const char* arguments[] = {"tests/optimizers/checkpoint_writer", dir.c_str(), nullptr};
    pid_t writer = 0;
    ASSERT_EQ(posix_spawn(&writer, arguments[0], nullptr, nullptr, const_cast<char**>(arguments),
                          environ),
              0);
    while (!LatestCheckpoint(dir_).has_value()) usleep(1000);
    usleep(3000 + round * 1700);
    kill(writer, SIGKILL);
    waitpid(writer, nullptr, 0);
    const auto path = LatestCheckpoint(dir_);
    ASSERT_TRUE(path.has_value());
    TF_ASSERT_OK_AND_ASSIGN(CheckpointState state, ReadCheckpoint(*path));
    ASSERT_EQ(state.variables.size(), 3u);
    for (const auto& [name, tensor] : state.variables) {
      for (int64_t i = 0; i < tensor.NumElements(); ++i)
        ASSERT_EQ(tensor.flat<double>()(i), state.step) << name;
    }
    last = std::max(last, state.step);
  }
  EXPECT_GT(last, 0);
}

}  // namespace
}  // namespace late_phase
