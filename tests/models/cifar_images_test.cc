// The CIFAR reader, on generated files, whole and damaged. Also run under the sanitizers.
#include "models/images/cifar_images.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/cifar_files.h"

namespace late_phase {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kImage = 3072;

std::vector<NamedBytes> SmallCifar10() { return CifarFiles(CifarSet::kCifar10, 3, 4, 10, 1); }
std::vector<NamedBytes> SmallCifar100() { return CifarFiles(CifarSet::kCifar100, 150, 4, 100, 2); }

// The images of all files but the last, or of the last, byte by byte.
void ExpectImages(const std::vector<NamedBytes>& files, CifarSet set, const CifarImages& images) {
  const int64_t label_bytes = set == CifarSet::kCifar10 ? 1 : 2, record = label_bytes + kImage;
  EXPECT_EQ(images.classes, set == CifarSet::kCifar10 ? 10 : 100);
  std::string training;
  for (size_t i = 0; i + 1 < files.size(); ++i) training += files[i].bytes;
  for (const bool test : {false, true}) {
    const std::string& bytes = test ? files.back().bytes : training;
    const LabelledImages& read = test ? images.test : images.training;
    ASSERT_EQ(read.count * record, static_cast<int64_t>(bytes.size()));
    ASSERT_EQ(read.side, 32);
    ASSERT_EQ(read.pixels.size(), static_cast<size_t>(read.count * kImage));
    ASSERT_EQ(read.labels.size(), static_cast<size_t>(read.count));
    for (int64_t i = 0; i < read.count; ++i) {
      ASSERT_EQ(read.labels[i], bytes[i * record + label_bytes - 1]);
      for (int64_t y = 0; y < 32; ++y) {
        for (int64_t x = 0; x < 32; ++x) {
          for (int64_t c = 0; c < 3; ++c) {
            ASSERT_EQ(
                read.pixels[((i * 32 + y) * 32 + x) * 3 + c],
                static_cast<uint8_t>(bytes[i * record + label_bytes + (c * 32 + y) * 32 + x]));
          }
        }
      }
    }
  }
}

void ExpectReads(CifarSet set, const std::string& path, const std::vector<NamedBytes>& files) {
  SCOPED_TRACE(path);
  CifarImages images;
  ASSERT_EQ(ReadCifar(set, path, &images), "");
  ExpectImages(files, set, images);
}

// What is said of CIFAR-10 in `path`, without what is always said.
std::string Complaint(const std::string& path) {
  CifarImages images;
  images.classes = 7;
  images.test.labels = {1, 2, 3};
  const std::string complaint = ReadCifar(CifarSet::kCifar10, path, &images);
  EXPECT_EQ(images.classes, 7);  // as it was
  EXPECT_EQ(images.test.labels.size(), 3u);
  EXPECT_TRUE(images.training.pixels.empty());
  const std::string always =
      "`data` must hold the binary version of CIFAR-10, data_batch_1.bin, data_batch_2.bin, "
      "data_batch_3.bin, data_batch_4.bin, data_batch_5.bin, test_batch.bin, in the folder "
      "cifar-10-batches-bin or in cifar-10-binary.tar.gz, from "
      "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz (md5 "
      "c32a1d4ab5d03f1284b67883e8d87530). Received: data=" +
      path + " (";
  EXPECT_EQ(complaint.substr(0, always.size()), always);
  if (complaint.size() <= always.size() || complaint.back() != ')') return complaint;
  return complaint.substr(always.size(), complaint.size() - always.size() - 1);
}

// An archive with these bytes, unpacked.
std::string ArchiveComplaint(const TestFolder& folder, const std::string& tar) {
  WriteBytes(folder / "a.tar.gz", Gzip(tar));
  return Complaint(folder / "a.tar.gz");
}

TEST(CifarImagesTest, ReadsFolders) {
  const TestFolder folder;
  WriteFiles(folder / "any/cifar-10-batches-bin", SmallCifar10());
  WriteFiles(folder / "any/cifar-100-binary", SmallCifar100());
  for (const char* path : {"any", "any/", "any/cifar-10-batches-bin"}) {
    ExpectReads(CifarSet::kCifar10, folder / path, SmallCifar10());
  }
  WriteBytes(folder / "any/test.bin", "another test's");  // the set is in the folder nonetheless
  for (const char* path : {"any", "any/cifar-100-binary", "any/cifar-100-binary/"}) {
    ExpectReads(CifarSet::kCifar100, folder / path, SmallCifar100());
  }
}

TEST(CifarImagesTest, ReadsArchives) {
  const TestFolder folder;
  WriteBytes(folder / "cifar-10-binary.tar.gz", Gzip(Tar(SmallCifar10(), "cifar-10-batches-bin/")));
  WriteBytes(folder / "cifar-100-binary.tar.gz", Gzip(Tar(SmallCifar100(), "cifar-100-binary/")));
  ExpectReads(CifarSet::kCifar10, folder / "cifar-10-binary.tar.gz", SmallCifar10());
  ExpectReads(CifarSet::kCifar100, folder / "cifar-100-binary.tar.gz", SmallCifar100());
  ExpectReads(CifarSet::kCifar10, folder.path(), SmallCifar10());
  ExpectReads(CifarSet::kCifar100, folder.path(), SmallCifar100());
}

TEST(CifarImagesTest, FindsMembersInAnyFolderAndOrderAmongOthers) {
  const TestFolder folder;
  for (const char* where : {"", "./", "a/b/c/d/", "/root/"}) {
    std::vector<NamedBytes> members = SmallCifar10();
    std::reverse(members.begin(), members.end());
    members.insert(members.begin() + 2, {"readme.html", std::string(5000000, 'x')});
    members.insert(members.begin(), {"my_data_batch_1.bin", "not this one"});
    members.push_back({"data_batch_1.bin.old", ""});
    std::string tar = TarHeader("folder/", "00000000000", '5') +
                      TarHeader("test_batch.bin", "00000000000", '5') +  // a folder's name
                      Tar(members, where);
    WriteBytes(folder / "a.tar.gz", Gzip(tar));
    ExpectReads(CifarSet::kCifar10, folder / "a.tar.gz", SmallCifar10());
  }
}

TEST(CifarImagesTest, ChannelsComeLast) {
  std::string record(1, '\7');
  for (int i = 0; i < kImage; ++i) record += static_cast<char>(i % 251);
  std::vector<NamedBytes> files = SmallCifar10();
  files[0].bytes = record;
  const TestFolder folder;
  WriteFiles(folder.path(), files);
  CifarImages images;
  ASSERT_EQ(ReadCifar(CifarSet::kCifar10, folder.path(), &images), "");
  EXPECT_EQ(images.training.count, 1 + 4 * 3);  // files need not be of the same size
  EXPECT_EQ(images.training.labels[0], 7);
  const auto pixel = [&](int y, int x) {
    const uint8_t* start = &images.training.pixels[(y * 32 + x) * 3];
    return std::vector<int>(start, start + 3);
  };
  EXPECT_EQ(pixel(0, 0), (std::vector<int>{0, 1024 % 251, 2048 % 251}));
  EXPECT_EQ(pixel(0, 1), (std::vector<int>{1, 1025 % 251, 2049 % 251}));
  EXPECT_EQ(pixel(1, 0), (std::vector<int>{32, 1056 % 251, 2080 % 251}));
  EXPECT_EQ(pixel(31, 31), (std::vector<int>{1023 % 251, 2047 % 251, 3071 % 251}));
}

TEST(CifarImagesTest, FineLabelsAreUsed) {
  const std::string image(kImage, '\0');
  const TestFolder folder;
  WriteFiles(folder.path(), {{"train.bin", "\x13\x63" + image + "\x01\x02" + image},
                             {"test.bin", "\xff\x05" + image}});
  CifarImages images;
  ASSERT_EQ(ReadCifar(CifarSet::kCifar100, folder.path(), &images), "");
  EXPECT_EQ(images.training.labels, (std::vector<int32_t>{99, 2}));
  EXPECT_EQ(images.test.labels, (std::vector<int32_t>{5}));

  WriteFiles(folder.path(), {{"test.bin", "\x05\x64" + image}});
  const std::string complaint = ReadCifar(CifarSet::kCifar100, folder.path(), &images);
  EXPECT_THAT(complaint, HasSubstr("record 0 of " + folder / "test.bin" +
                                   " has label 100 instead of one below 100"));
  EXPECT_THAT(complaint,
              HasSubstr("CIFAR-100, train.bin, test.bin, in the folder cifar-100-binary"));
  EXPECT_THAT(complaint, HasSubstr("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz (md5 "
                                   "03b5dce01913d631647c71ecec9e9cb8)"));
}

TEST(CifarImagesTest, MissingPathsAreNamed) {
  EXPECT_EQ(Complaint("/nowhere/at all"), "/nowhere/at all: No such file or directory");
  EXPECT_EQ(Complaint(""), ": No such file or directory");
  EXPECT_EQ(Complaint("/dev/null"), "/dev/null is neither a folder nor a file");
  const TestFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(Complaint(folder / "pipe"), folder / "pipe" + " is neither a folder nor a file");
}

TEST(CifarImagesTest, MissingFilesAreListed) {
  const TestFolder folder;
  EXPECT_EQ(Complaint(folder.path()), folder.path() +
                                          " lacks data_batch_1.bin, data_batch_2.bin, "
                                          "data_batch_3.bin, data_batch_4.bin, data_batch_5.bin, "
                                          "test_batch.bin");
  std::vector<NamedBytes> files = SmallCifar10();
  files.erase(files.begin() + 2);
  files.pop_back();
  WriteFiles(folder / "cifar-10-batches-bin", files);
  const std::string lacks = " lacks data_batch_3.bin, test_batch.bin";
  EXPECT_EQ(Complaint(folder.path()), folder / "cifar-10-batches-bin" + lacks);
  EXPECT_EQ(ArchiveComplaint(folder, Tar(files)), folder / "a.tar.gz" + lacks);
  // The other set's.
  EXPECT_THAT(ArchiveComplaint(folder, Tar(SmallCifar100())),
              HasSubstr("lacks data_batch_1.bin, data_"));
}

TEST(CifarImagesTest, WrongSizesAreRefused) {
  const std::vector<std::pair<int64_t, std::string>> cases = {{0, " has 0 bytes "},
                                                              {1, " has 1 bytes "},
                                                              {3072, " has 3072 bytes "},
                                                              {3 * 3073 - 1, " has 9218 bytes "},
                                                              {3 * 3073 + 1, " has 9220 bytes "}};
  const std::string expected = "instead of 1 to 10000 whole records of 3073 bytes";
  const TestFolder folder;
  for (const auto& [size, found] : cases) {
    std::vector<NamedBytes> files = SmallCifar10();
    files[4].bytes.resize(size);
    WriteFiles(folder.path(), files);
    EXPECT_EQ(Complaint(folder.path()), folder / "data_batch_5.bin" + found + expected);
    EXPECT_EQ(ArchiveComplaint(folder, Tar(files)),
              "data_batch_5.bin in " + folder / "a.tar.gz" + found + expected);
  }
  // More than was ever published; a sparse file, which takes no room.
  WriteFiles(folder.path(), SmallCifar10());
  ASSERT_EQ(truncate((folder / "test_batch.bin").c_str(), 10001 * 3073), 0);
  EXPECT_EQ(Complaint(folder.path()), folder / "test_batch.bin has 30733073 bytes " + expected);
}

TEST(CifarImagesTest, LabelsOutOfRangeAreRefused) {
  std::vector<NamedBytes> files = SmallCifar10();
  files[1].bytes[2 * 3073] = '\xff';
  const TestFolder folder;
  WriteFiles(folder.path(), files);
  const std::string found = " has label 255 instead of one below 10";
  EXPECT_EQ(Complaint(folder.path()), "record 2 of " + folder / "data_batch_2.bin" + found);
  EXPECT_EQ(ArchiveComplaint(folder, Tar(files)),
            "record 2 of data_batch_2.bin in " + folder / "a.tar.gz" + found);
  files = SmallCifar10();
  files[5].bytes[0] = 10;
  WriteFiles(folder.path(), files);
  EXPECT_EQ(Complaint(folder.path()),
            "record 0 of " + folder / "test_batch.bin" + " has label 10 instead of one below 10");
}

TEST(CifarImagesTest, WhatIsNotAFileIsRefused) {
  const TestFolder folder;
  WriteFiles(folder.path(), SmallCifar10());
  unlink((folder / "data_batch_1.bin").c_str());
  ASSERT_EQ(mkfifo((folder / "data_batch_1.bin").c_str(), 0600), 0);
  EXPECT_EQ(Complaint(folder.path()), folder / "data_batch_1.bin is not a file");
  unlink((folder / "data_batch_1.bin").c_str());
  std::filesystem::create_directory(folder / "data_batch_1.bin");
  EXPECT_EQ(Complaint(folder.path()), folder / "data_batch_1.bin is not a file");
}

TEST(CifarImagesTest, WhatIsNoArchiveIsRefused) {
  const TestFolder folder;
  for (const std::string& bytes :
       {std::string(), std::string("hello"), std::string(100000, 'x'), SmallCifar10()[0].bytes}) {
    WriteBytes(folder / "a.tar.gz", bytes);
    EXPECT_EQ(Complaint(folder / "a.tar.gz"), folder / "a.tar.gz: Unrecognized archive format");
    WriteBytes(folder / "a.tar.gz", Gzip(bytes));
    EXPECT_EQ(Complaint(folder / "a.tar.gz"), folder / "a.tar.gz: Unrecognized archive format");
  }
}

TEST(CifarImagesTest, TruncatedArchivesAreRefused) {
  const TestFolder folder;
  const std::string path = folder / "a.tar.gz";
  const std::string whole = Gzip(Tar(SmallCifar10()));
  std::vector<size_t> sizes = {
      1, 5, 9, 10, 11, 18, whole.size() - 9, whole.size() - 8, whole.size() - 1};
  for (size_t size = 97; size < whole.size(); size += 997) sizes.push_back(size);
  for (const size_t size : sizes) {
    WriteBytes(path, whole.substr(0, size));
    const std::string complaint = Complaint(path);
    EXPECT_EQ(complaint.substr(0, path.size() + 2), path + ": ") << "size=" << size;
    if (size >= 18) {
      EXPECT_EQ(complaint, path + ": unexpected end of file") << "size=" << size;
    }
  }
  // The tar inside ends too early: in a header, in a file, before the end's two empty blocks.
  const std::string tar = Tar(SmallCifar10());
  for (const size_t size : {size_t{100}, size_t{512}, size_t{600}, tar.size() / 2}) {
    EXPECT_NE(ArchiveComplaint(folder, tar.substr(0, size)), "") << "size=" << size;
  }
  WriteBytes(path, Gzip(tar.substr(0, tar.size() - 1024)));  // harmless
  ExpectReads(CifarSet::kCifar10, path, SmallCifar10());
}

TEST(CifarImagesTest, NoDamageToTheArchiveBecomesPixels) {
  const TestFolder folder;
  const std::string path = folder / "a.tar.gz";
  const std::string whole = Gzip(Tar(SmallCifar10()));
  int complaints = 0, trials = 0;
  for (size_t place = 10; place < whole.size(); place += 211, ++trials) {  // after gzip's header
    std::string damaged = whole;
    damaged[place] = static_cast<char>(damaged[place] ^ 1 << place % 8);
    WriteBytes(path, damaged);
    CifarImages images;
    if (ReadCifar(CifarSet::kCifar10, path, &images).empty()) {
      ExpectImages(SmallCifar10(), CifarSet::kCifar10, images);
    } else {
      ++complaints;
    }
  }
  EXPECT_GE(complaints, trials - 1);

  std::string damaged = whole;
  damaged[whole.size() - 8] = static_cast<char>(damaged[whole.size() - 8] ^ 1);
  WriteBytes(path, damaged);
  EXPECT_EQ(Complaint(path), path + ": incorrect data check");
}

TEST(CifarImagesTest, HostileArchivesAreRefused) {
  const TestFolder folder;
  const std::string end(1024, '\0');
  // Sizes that are not there: 8 GB, 2^62 and -1 bytes, the latter two in binary.
  EXPECT_THAT(ArchiveComplaint(folder, TarHeader("train/test_batch.bin", "77777777777")),
              HasSubstr("test_batch.bin in " + folder / "a.tar.gz has 8589934591 bytes instead"));
  const std::string huge("\x80\0\0\0\x40\0\0\0\0\0\0\0", 12), negative(12, '\xff');
  for (const std::string& size : {huge, negative}) {
    const std::string tar = TarHeader("data_batch_1.bin", size) + end;
    EXPECT_NE(ArchiveComplaint(folder, tar), "");
    EXPECT_NE(ArchiveComplaint(folder, TarHeader("readme", size) + end), "");
  }
  // Within the bound, but not there.
  EXPECT_NE(ArchiveComplaint(folder, TarHeader("data_batch_1.bin", "00000006001") + end), "");
  // A link is not followed.
  EXPECT_THAT(ArchiveComplaint(
                  folder, TarHeader("data_batch_1.bin", "00000000000", '2') + Tar(SmallCifar100())),
              HasSubstr(" lacks data_batch_1.bin"));
  std::vector<NamedBytes> twice = SmallCifar10();
  twice.push_back({"copy/data_batch_4.bin", twice[3].bytes});
  EXPECT_EQ(ArchiveComplaint(folder, Tar(twice)),
            "data_batch_4.bin in " + folder / "a.tar.gz appears twice");
}

}  // namespace
}  // namespace late_phase
