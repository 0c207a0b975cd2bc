// The files of a run when something is wrong with the disk: metrics.jsonl
// (models/training/run_folder.h) and checkpoints (optimizers/checkpoint.h) are as they were, and
// the error says what failed.
#include <cerrno>
#include <filesystem>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/training/run_folder.h"
#include "optimizers/checkpoint.h"
#include "optimizers/disk.h"
#include "tests/support/failing_disk.h"
#include "tests/support/status_matchers.h"

namespace late_phase {
namespace {

using test_util::IsOk;
using test_util::StatusIs;
using ::testing::_;
using ::testing::StartsWith;

namespace fs = std::filesystem;
using test_util::fsync_error;

constexpr char kLines[] =
    "{\"kind\":\"train\",\"step\":10,\"seconds\":1.5}\n"
    "{\"kind\":\"train\",\"step\":20,\"seconds\":3}\n"
    "{\"kind\":\"train\",\"step\":30,\"seconds\":4.5}\n"
    "{\"kind\":\"tra";

class RunFilesTest : public ::testing::Test {
 protected:
  RunFilesTest()
      : folder_(fs::path(::testing::TempDir()) /
                ::testing::UnitTest::GetInstance()->current_test_info()->name()),
        run_((folder_ / "run").string()),
        metrics_(run_ + "/metrics.jsonl") {
    fs::remove_all(folder_);
    fs::create_directories(run_);
    folder_ = fs::canonical(folder_);
    EXPECT_EQ(ReplaceFile(metrics_, kLines), std::error_code());
  }
  ~RunFilesTest() override { fsync_error = nullptr; }

  static std::string ReadText(const std::string& path) {
    std::string text;
    EXPECT_EQ(ReadWholeFile(path, &text), std::error_code()) << path;
    return text;
  }

  fs::path folder_;
  const std::string run_, metrics_;
};

TEST_F(RunFilesTest, AResumedRunKeepsTheLinesOfItsSteps) {
  TF_ASSERT_OK_AND_ASSIGN(std::unique_ptr<RunFolder> folder, RunFolder::Open(run_, 20));
  EXPECT_EQ(folder->earlier_seconds(), 3);
  EXPECT_EQ(
      ReadText(metrics_),
      std::string(kLines).substr(0, std::string(kLines).find("{\"kind\":\"train\",\"step\":30")));
  // One that has just begun has none.
  TF_ASSERT_OK_AND_ASSIGN(folder, RunFolder::Open((folder_ / "new").string(), 0));
  EXPECT_EQ(ReadText((folder_ / "new/metrics.jsonl").string()), "");
}

TEST_F(RunFilesTest, EvaluationsAfterTheLastStepAreRepeated) {
  const std::string training = "{\"kind\":\"train\",\"step\":20,\"seconds\":3}\n",
                    before = "{\"kind\":\"evaluation\",\"step\":10}\n";
  ASSERT_EQ(ReplaceFile(metrics_, before + training + "{\"kind\":\"evaluation\",\"step\":20}\n" +
                                      "{\"kind\":\"members\",\"step\":20}\n"),
            std::error_code());
  // Those of a run that is to be trained for longer stay.
  TF_ASSERT_OK_AND_ASSIGN(std::unique_ptr<RunFolder> folder, RunFolder::Open(run_, 20));
  EXPECT_NE(ReadText(metrics_), before + training);
  TF_ASSERT_OK_AND_ASSIGN(folder, RunFolder::Open(run_, 20, /*trained=*/true));
  EXPECT_EQ(ReadText(metrics_), before + training);
  EXPECT_EQ(folder->earlier_seconds(), 3);
}

TEST_F(RunFilesTest, LinesWithoutNumbersAreDropped) {
  ASSERT_EQ(
      ReplaceFile(metrics_, "{\"step\":\"ten\"}\n[10]\nnull\n{\"step\":10,\"seconds\":null}\n"),
      std::error_code());
  TF_ASSERT_OK_AND_ASSIGN(std::unique_ptr<RunFolder> folder, RunFolder::Open(run_, 20));
  EXPECT_EQ(folder->earlier_seconds(), 0);
  EXPECT_EQ(ReadText(metrics_), "{\"step\":10,\"seconds\":null}\n");
}

// A folder in its place, a link in a circle, and a file whose first byte cannot be read.
TEST_F(RunFilesTest, MetricsThatCannotBeReadStayAsTheyAre) {
  const fs::path circle = folder_ / "circle";
  fs::create_symlink(circle, circle);
  fs::create_directory(folder_ / "taken");
  for (const auto& [target, reason] : std::initializer_list<std::pair<fs::path, const char*>>{
           {folder_ / "taken", "Is a directory"},
           {circle, "Too many levels of symbolic links"},
           {"/proc/self/mem", "Input/output error"}}) {
    SCOPED_TRACE(target);
    fs::remove(metrics_);
    fs::create_symlink(target, metrics_);
    EXPECT_THAT(RunFolder::Open(run_, 20), StatusIs(_, "cannot read " + metrics_ + ": " + reason));
    EXPECT_EQ(fs::read_symlink(metrics_), target);
    // Nor is another run's file replaced by them.
    const std::string other = (folder_ / "other").string();
    fs::create_directory(other);
    ASSERT_EQ(ReplaceFile(other + "/metrics.jsonl", kLines), std::error_code());
    EXPECT_THAT(RunFolder::CopyMetrics(run_, other, 20),
                StatusIs(_, "cannot read " + metrics_ + ": " + reason));
    EXPECT_EQ(ReadText(other + "/metrics.jsonl"), kLines);
  }
}

// Otherwise the next checkpoint would make a folder without settings and metrics.
TEST_F(RunFilesTest, AFolderThatWasRemovedMovedOrReplacedIsNoticed) {
  EXPECT_THAT(RunFolder::Nowhere()->Check(), IsOk());
  TF_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<RunFolder> folder, RunFolder::Open(run_, 20));
  EXPECT_THAT(folder->Check(), IsOk());
  fs::rename(run_, folder_ / "moved");
  EXPECT_THAT(folder->Check(), StatusIs(_, "cannot write to " + run_ + ": " + metrics_ +
                                               ": No such file or directory"));
  fs::create_directory(run_);
  ASSERT_EQ(ReplaceFile(metrics_, kLines), std::error_code());
  EXPECT_THAT(folder->Check(), StatusIs(_, "cannot write to " + run_ + ": " + metrics_ +
                                               " was replaced by another process"));
  fs::remove_all(run_);
  fs::rename(folder_ / "moved", run_);
  EXPECT_THAT(folder->Check(), IsOk());
}

TEST_F(RunFilesTest, MetricsStayIfTheDiskDoesNotConfirmTheNewOnes) {
  fsync_error = [](const std::string& path) {
    return absl::StrContains(path, "metrics") ? EIO : 0;
  };
  EXPECT_THAT(RunFolder::Open(run_, 20),
              StatusIs(_, "cannot write " + metrics_ + ": Input/output error"));
  EXPECT_EQ(ReadText(metrics_), kLines);
}

CheckpointState AtStep(int64_t step) {
  tensorflow::Tensor weight(tensorflow::DT_DOUBLE, {3});
  weight.flat<double>().setConstant(step);
  return {step, {{"weight", weight}}, {{"members", "1"}}, 1};
}

// Wherever the disk fails, the checkpoint before is there, whole, and the next attempt succeeds.
TEST_F(RunFilesTest, ACheckpointThatIsNotOnTheDiskIsAnErrorAndTheOneBeforeStays) {
  const std::string dir = (folder_ / "checkpoint").string();
  ASSERT_THAT(WriteCheckpoint(dir, AtStep(1)), IsOk());
  for (const auto& [failing, message] : std::initializer_list<std::pair<std::string, std::string>>{
           {dir + "/.incomplete/state.index", "cannot write " + dir + "/.incomplete"},
           {dir + "/.incomplete/state.data-00000-of-00001", "cannot write " + dir + "/.incomplete"},
           {dir + "/.incomplete", "cannot write " + dir + "/.incomplete"},
           {dir, "cannot write " + dir}}) {
    SCOPED_TRACE(failing);
    bool asked = false;
    fsync_error = [&, failing = failing](const std::string& path) {
      asked = asked || path == failing;
      return path == failing ? EIO : 0;
    };
    EXPECT_THAT(WriteCheckpoint(dir, AtStep(2)), StatusIs(_, message + ": Input/output error"));
    EXPECT_TRUE(asked);
    TF_ASSERT_OK_AND_ASSIGN(CheckpointState state, ReadCheckpoint(dir + "/step-000000000001"));
    EXPECT_EQ(state.variables.at("weight").flat<double>()(2), 1);
    // Only the rename is before the folder's sync.
    EXPECT_EQ(fs::exists(dir + "/step-000000000002"), failing == dir);
  }
  fsync_error = nullptr;
  ASSERT_THAT(WriteCheckpoint(dir, AtStep(3)), IsOk());
  std::vector<std::string> entries;
  ASSERT_EQ(ListFolder(dir, &entries), std::error_code());
  EXPECT_EQ(entries, std::vector<std::string>{dir + "/step-000000000003"});
}

TEST_F(RunFilesTest, AFolderThatCannotBeLookedIntoIsAnErrorNotAnException) {
  const fs::path circle = folder_ / "circle";
  fs::create_symlink(circle, circle);
  const std::string dir = (circle / "checkpoint").string();
  EXPECT_THAT(WriteCheckpoint(dir, AtStep(1)),
              StatusIs(_, "cannot check for " + dir +
                              "/step-000000000001: Too many levels of symbolic links"));
  EXPECT_EQ(LatestCheckpoint(dir), std::nullopt);
}

TEST_F(RunFilesTest, SettingsOfACheckpointMustAgreeInEveryDigit) {
  CheckpointState saved = AtStep(1);
  saved.settings = {
      {"members", "1234567"}, {"sigma", "0.35"}, {"base", "sgd lr=0.3333333333333333"}};
  EXPECT_THAT(SameSettings(saved, saved.settings), IsOk());
  auto with = [&](size_t place, const char* value) {
    Settings wanted = saved.settings;
    wanted[place].second = value;
    return std::string(SameSettings(saved, wanted).message());
  };
  EXPECT_EQ(with(1, "0.3500000001"),
            "`sigma` must be 0.35, as in the checkpoint. Received: sigma=0.3500000001");
  EXPECT_EQ(with(2, "sgd lr=0.333333"),
            "`base` must be sgd lr=0.3333333333333333, as in the checkpoint. Received: base=sgd "
            "lr=0.333333");
  Settings of_text = saved.settings;
  of_text.emplace_back(kTrainCharacters, "1608");
  EXPECT_THAT(SameSettings(saved, of_text),
              StatusIs(_,
                       "`train_characters` must be (not there), as in the checkpoint. Received: "
                       "train_characters=1608"));
  saved.format = 1;  // which did not have it
  EXPECT_THAT(SameSettings(saved, of_text), IsOk());
  EXPECT_NE(with(0, "1234568"), "");
  // Of version 0.1.0: it has no more than six digits of what is no integer.
  saved.format = 0;
  EXPECT_EQ(with(1, "0.3500000001"), "");
  EXPECT_NE(with(1, "0.350001"), "");
  EXPECT_NE(with(0, "1234568"), "");
  saved.settings[2].second = "sgd lr=0.333333";
  EXPECT_EQ(with(2, "sgd lr=0.3333333333333333"), "");
  EXPECT_EQ(with(2, "sgd lr=0.333333"), "");
  EXPECT_NE(with(2, "sgd lr=0.3333"), "");
  EXPECT_NE(with(2, "sgd lr=0.3333343333333333"), "");
}

TEST_F(RunFilesTest, AFormatIsReadBackAndANewerOneRefused) {
  const std::string dir = (folder_ / "checkpoint").string();
  CheckpointState newer = AtStep(1), read;
  ASSERT_THAT(WriteCheckpoint(dir, newer), IsOk());
  TF_ASSERT_OK_AND_ASSIGN(read, ReadCheckpoint(LatestCheckpoint(dir).value_or("none")));
  EXPECT_EQ(read.format, kCheckpointFormat);
  EXPECT_EQ(read.variables.size(), 1u);
  newer.step = 2;
  newer.format = kCheckpointFormat + 1;
  ASSERT_THAT(WriteCheckpoint(dir, newer), IsOk());
  EXPECT_THAT(ReadCheckpoint(LatestCheckpoint(dir).value_or("none")),
              StatusIs(_, StartsWith("the checkpoint's format must be at most 2")));
}

}  // namespace
}  // namespace late_phase
