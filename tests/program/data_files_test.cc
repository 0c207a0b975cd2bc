// The data of several runs: read once, and divided without a copy.
#include "tools/program/data_files.h"

#include "gtest/gtest.h"
#include "tests/support/cifar_files.h"
#include "tools/program/cifar_experiment.h"
#include "tools/program/command_line.h"

namespace late_phase {
namespace {

void Set(Experiment* experiment, const std::string& name, int64_t value) {
  for (const Setting& setting : experiment->Settings()) {
    if (setting.name != name) continue;
    ASSERT_TRUE(setting.set(std::to_string(value)));
  }
}

// Five files of 8 training images, one of 12 test images.
TEST(DataFilesTest, RunsWithOtherPartsOfTheImagesShareThem) {
  const TestFolder folder;
  WriteFiles(folder.path(), CifarFiles(CifarSet::kCifar10, 8, 12, 10, 3));
  DataFiles files;
  CifarExperiment all, some;
  Set(&some, "train_images", 7);
  Set(&some, "validation_images", 30);
  Set(&some, "test_images", 5);
  all.OpenData(folder.path(), &files);
  some.OpenData(folder.path(), &files);
  EXPECT_EQ(files.reads(), 1);
  const CifarData &whole = all.data(), &part = some.data();
  EXPECT_EQ(whole.training.count, 40);
  EXPECT_EQ(part.training.count, 7);
  EXPECT_EQ(part.validation.count, 30);
  EXPECT_EQ(part.test.count, 5);
  // The same bytes in the same place.
  EXPECT_EQ(part.training.pixels, whole.training.pixels);
  EXPECT_EQ(part.training.labels, whole.training.labels);
  EXPECT_EQ(part.validation.pixels, whole.training.pixels + 10 * 3072);
  EXPECT_EQ(part.validation.labels, whole.training.labels + 10);
  EXPECT_EQ(part.test.pixels, whole.test.pixels);
  EXPECT_NE(part.statistics.mean[0], whole.statistics.mean[0]);  // of the images trained on
}

TEST(DataFilesTest, ImagesOutliveTheObjectThatReadThem) {
  const TestFolder folder;
  WriteFiles(folder.path(), CifarFiles(CifarSet::kCifar10, 8, 12, 10, 3));
  CifarExperiment experiment;
  {
    DataFiles files;
    experiment.OpenData(folder.path(), &files);
  }
  EXPECT_EQ(experiment.data().training.pixels, experiment.data().images->training.pixels.data());
}

TEST(DataFilesTest, AnotherPathIsAnotherFileAndAComplaintIsNotKept) {
  const TestFolder folder, other;
  DataFiles files;
  EXPECT_THROW(files.Cifar(CifarSet::kCifar10, folder.path()), UsageError);
  EXPECT_THROW(files.Text(folder / "text", {}), UsageError);
  EXPECT_EQ(files.reads(), 0);
  for (const TestFolder* one : {&folder, &other}) {
    WriteFiles(one->path(), CifarFiles(CifarSet::kCifar10, 8, 12, 10, 3));
  }
  const auto images = files.Cifar(CifarSet::kCifar10, folder.path());
  EXPECT_EQ(files.Cifar(CifarSet::kCifar10, folder.path()), images);
  EXPECT_NE(files.Cifar(CifarSet::kCifar10, other.path()), images);
  EXPECT_EQ(files.reads(), 2);
}

TEST(DataFilesTest, TextsAreSharedByRunsWithTheSameLimits) {
  const TestFolder folder;
  std::string text;
  for (int i = 0; i < 2000; ++i) text += static_cast<char>('a' + i % 7);
  WriteBytes(folder / "text", text);
  DataFiles files;
  const auto whole = files.Text(folder / "text", {});
  EXPECT_EQ(files.Text(folder / "text", {}), whole);
  EXPECT_EQ(files.reads(), 1);
  EXPECT_EQ(files.Text(folder / "text", {900, 0, 0})->training().characters, 900);
  EXPECT_EQ(files.reads(), 2);
}

}  // namespace
}  // namespace late_phase
