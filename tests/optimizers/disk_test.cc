// optimizers/disk.h: whole files, and disks that fail.
#include "optimizers/disk.h"

#include <cerrno>
#include <filesystem>
#include <utility>

#include "gtest/gtest.h"
#include "tests/support/failing_disk.h"

namespace late_phase {
namespace {

namespace fs = std::filesystem;
using test_util::fsync_error;

class DiskTest : public ::testing::Test {
 protected:
  DiskTest()
      : folder_(fs::path(::testing::TempDir()) /
                ::testing::UnitTest::GetInstance()->current_test_info()->name()),
        path_((folder_ / "file").string()) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    folder_ = fs::canonical(folder_);
    EXPECT_EQ(ReplaceFile(path_, "old"), std::error_code());
  }
  ~DiskTest() override { fsync_error = nullptr; }

  std::string Text() {
    std::string text;
    EXPECT_EQ(ReadWholeFile(path_, &text), std::error_code());
    return text;
  }

  size_t Entries() {
    std::vector<std::string> entries;
    EXPECT_EQ(ListFolder(folder_.string(), &entries), std::error_code());
    return entries.size();
  }

  fs::path folder_;
  std::string path_;
};

TEST_F(DiskTest, AFileIsReplacedAndSyncedWithItsFolder) {
  std::vector<std::string> synced;
  fsync_error = [&](const std::string& path) {
    synced.push_back(path);
    return 0;
  };
  EXPECT_EQ(ReplaceFile(path_, std::string("new\0text", 8)), std::error_code());
  EXPECT_EQ(Text(), std::string("new\0text", 8));
  ASSERT_EQ(synced.size(), 2u);  // before the rename and after it
  EXPECT_EQ(synced[0].rfind((folder_ / "file.part").string(), 0), 0u) << synced[0];
  EXPECT_EQ(synced[1], folder_.string());
}

TEST_F(DiskTest, WhatTheDiskDoesNotConfirmReplacesNothing) {
  fsync_error = [](const std::string&) { return EIO; };
  EXPECT_EQ(ReplaceFile(path_, "new"), std::errc::io_error);
  EXPECT_EQ(Text(), "old");
  EXPECT_EQ(Entries(), 1u) << "something was left aside";
}

TEST_F(DiskTest, AFolderThatIsNotOnTheDiskIsReported) {
  fsync_error = [&](const std::string& path) { return path == folder_ ? EIO : 0; };
  EXPECT_EQ(ReplaceFile(path_, "new"), std::errc::io_error);
  EXPECT_EQ(SyncFolder(folder_.string()), std::errc::io_error);
  EXPECT_EQ(SyncFile(path_), std::error_code());
}

TEST_F(DiskTest, AFileSystemThatCannotSyncFoldersIsNoError) {
  fsync_error = [&](const std::string& path) { return path == folder_ ? EINVAL : 0; };
  EXPECT_EQ(ReplaceFile(path_, "new"), std::error_code());
  EXPECT_EQ(Text(), "new");
  fsync_error = [](const std::string&) { return EINVAL; };
  EXPECT_EQ(SyncFile(path_), std::errc::invalid_argument);
}

TEST_F(DiskTest, AFolderBelongsToOneLockAtATime) {
  FolderLock other;
  {
    FolderLock lock;
    EXPECT_EQ(lock.Take(folder_.string()), std::error_code());
    EXPECT_EQ(other.Take(folder_.string()), std::errc::resource_unavailable_try_again);
    const FolderLock moved = std::move(lock);
    EXPECT_EQ(other.Take(folder_.string()), std::errc::resource_unavailable_try_again);
  }
  EXPECT_EQ(other.Take(folder_.string()), std::error_code());
  EXPECT_EQ(FolderLock().Take((folder_ / "none").string()), std::errc::no_such_file_or_directory);
  EXPECT_EQ(FolderLock().Take(path_), std::errc::not_a_directory);
}

TEST_F(DiskTest, WhatCannotBeReadIsReportedAndNothingGiven) {
  // Of /proc/self/mem the first byte cannot be read: an error after a successful open.
  const std::vector<std::pair<std::string, std::errc>> cases = {
      {(folder_ / "none").string(), std::errc::no_such_file_or_directory},
      {folder_.string(), std::errc::is_a_directory},
      {"/proc/self/mem", std::errc::io_error}};
  for (const auto& [path, expected] : cases) {
    std::string text = "as before";
    EXPECT_EQ(ReadWholeFile(path, &text), expected) << path;
    EXPECT_EQ(text, "as before") << path;
  }
  std::vector<std::string> entries = {"as before"};
  EXPECT_EQ(ListFolder(path_, &entries), std::errc::not_a_directory);
  EXPECT_TRUE(entries.empty());
  EXPECT_EQ(SyncFile((folder_ / "none").string()), std::errc::no_such_file_or_directory);
  EXPECT_EQ(SyncFolder(path_), std::errc::not_a_directory);
}

}  // namespace
}  // namespace late_phase
