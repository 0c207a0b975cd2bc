// The files of a run when something is wrong with the disk: metrics.jsonl
// (models/training/run_folder.h) and checkpoints (optimizers/checkpoint.h) are as they were, and
// the error says what failed.
#include <cerrno>
#include <filesystem>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "models/training/run_folder.h"
#include "optimizers/checkpoint.h"
#include "optimizers/disk.h"
#include "tests/support/failing_disk.h"

namespace late_phase {
namespace {

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

  static std::string TextOf(const std::string& path) {
    std::string text;
    EXPECT_EQ(ReadWholeFile(path, &text), std::error_code()) << path;
    return text;
  }

  fs::path folder_;
  const std::string run_, metrics_;
};

TEST_F(RunFilesTest, AResumedRunKeepsTheLinesOfItsSteps) {
  std::unique_ptr<RunFolder> folder;
  ASSERT_EQ(RunFolder::Open(run_, 20, &folder), absl::OkStatus());
  EXPECT_EQ(folder->earlier_seconds(), 3);
  EXPECT_EQ(TextOf(metrics_), std::string(kLines).substr(
                                  0, std::string(kLines).find("{\"kind\":\"train\",\"step\":30")));
  // One that has just begun has none.
  ASSERT_EQ(RunFolder::Open((folder_ / "new").string(), 0, &folder), absl::OkStatus());
  EXPECT_EQ(TextOf((folder_ / "new/metrics.jsonl").string()), "");
}

TEST_F(RunFilesTest, LinesWithoutNumbersAreDropped) {
  ASSERT_EQ(
      ReplaceFile(metrics_, "{\"step\":\"ten\"}\n[10]\nnull\n{\"step\":10,\"seconds\":null}\n"),
      std::error_code());
  std::unique_ptr<RunFolder> folder;
  ASSERT_EQ(RunFolder::Open(run_, 20, &folder), absl::OkStatus());
  EXPECT_EQ(folder->earlier_seconds(), 0);
  EXPECT_EQ(TextOf(metrics_), "{\"step\":10,\"seconds\":null}\n");
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
    std::unique_ptr<RunFolder> folder;
    EXPECT_EQ(RunFolder::Open(run_, 20, &folder).message(),
              "cannot read " + metrics_ + ": " + reason);
    EXPECT_EQ(fs::read_symlink(metrics_), target);
    // Nor is another run's file replaced by them.
    const std::string other = (folder_ / "other").string();
    fs::create_directory(other);
    ASSERT_EQ(ReplaceFile(other + "/metrics.jsonl", kLines), std::error_code());
    EXPECT_EQ(RunFolder::CopyMetrics(run_, other, 20).message(),
              "cannot read " + metrics_ + ": " + reason);
    EXPECT_EQ(TextOf(other + "/metrics.jsonl"), kLines);
  }
}

TEST_F(RunFilesTest, MetricsStayIfTheDiskDoesNotConfirmTheNewOnes) {
  fsync_error = [](const std::string& path) {
    return absl::StrContains(path, "metrics") ? EIO : 0;
  };
  std::unique_ptr<RunFolder> folder;
  EXPECT_EQ(RunFolder::Open(run_, 20, &folder).message(),
            "cannot write " + metrics_ + ": Input/output error");
  EXPECT_EQ(TextOf(metrics_), kLines);
}

CheckpointState AtStep(int64_t step) {
  tensorflow::Tensor weight(tensorflow::DT_DOUBLE, {3});
  weight.flat<double>().setConstant(step);
  return {step, {{"weight", weight}}, {{"members", "1"}}, 1};
}

// Wherever the disk fails, the checkpoint before is there, whole, and the next attempt succeeds.
TEST_F(RunFilesTest, ACheckpointThatIsNotOnTheDiskIsAnErrorAndTheOneBeforeStays) {
  const std::string dir = (folder_ / "checkpoint").string();
  ASSERT_EQ(WriteCheckpoint(dir, AtStep(1)), absl::OkStatus());
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
    EXPECT_EQ(WriteCheckpoint(dir, AtStep(2)).message(), message + ": Input/output error");
    EXPECT_TRUE(asked);
    CheckpointState state;
    ASSERT_EQ(ReadCheckpoint(dir + "/step-000000000001", &state), absl::OkStatus());
    EXPECT_EQ(state.variables.at("weight").flat<double>()(2), 1);
    // Only the rename is before the folder's sync.
    EXPECT_EQ(fs::exists(dir + "/step-000000000002"), failing == dir);
  }
  fsync_error = nullptr;
  ASSERT_EQ(WriteCheckpoint(dir, AtStep(3)), absl::OkStatus());
  std::vector<std::string> entries;
  ASSERT_EQ(ListFolder(dir, &entries), std::error_code());
  EXPECT_EQ(entries, std::vector<std::string>{dir + "/step-000000000003"});
}

TEST_F(RunFilesTest, AFolderThatCannotBeLookedIntoIsAnErrorNotAnException) {
  const fs::path circle = folder_ / "circle";
  fs::create_symlink(circle, circle);
  const std::string dir = (circle / "checkpoint").string();
  EXPECT_EQ(WriteCheckpoint(dir, AtStep(1)).message(),
            "cannot look for " + dir + "/step-000000000001: Too many levels of symbolic links");
  EXPECT_EQ(LatestCheckpoint(dir), std::nullopt);
}

TEST_F(RunFilesTest, SettingsOfACheckpointMustAgreeInEveryDigit) {
  CheckpointState saved = AtStep(1);
  saved.settings = {
      {"members", "1234567"}, {"sigma", "0.35"}, {"base", "sgd lr=0.3333333333333333"}};
  EXPECT_EQ(SameSettings(saved, saved.settings), absl::OkStatus());
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
  ASSERT_EQ(WriteCheckpoint(dir, newer), absl::OkStatus());
  ASSERT_EQ(ReadCheckpoint(*LatestCheckpoint(dir), &read), absl::OkStatus());
  EXPECT_EQ(read.format, kCheckpointFormat);
  EXPECT_EQ(read.variables.size(), 1u);
  newer.step = 2;
  newer.format = kCheckpointFormat + 1;
  ASSERT_EQ(WriteCheckpoint(dir, newer), absl::OkStatus());
  EXPECT_TRUE(absl::StartsWith(ReadCheckpoint(*LatestCheckpoint(dir), &read).message(),
                               "the checkpoint's format must be at most 1"));
}

}  // namespace
}  // namespace late_phase
