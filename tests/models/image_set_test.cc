// Readers of the images that a network is evaluated on besides its own: sets of other images, .npy
// files, corrupted images. Also run under the sanitizers.
#include "models/images/image_set.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/images/corrupted_images.h"
#include "models/images/npy.h"
#include "tests/support/cifar_files.h"

namespace late_phase {
namespace {

using ::testing::HasSubstr;

TEST(ImageSetTest, ReadsPlanesAsPixels) {
  const TestFolder folder;
  std::string bytes;
  for (const int label : {3, 200}) {
    bytes += static_cast<char>(label);
    for (int i = 0; i < 3072; ++i) bytes += static_cast<char>((i / 1024) * 80 + i % 7 + label % 2);
  }
  WriteBytes(folder / "svhn-test.bin", bytes);
  LabelledImages images;
  std::string name;
  ASSERT_EQ(ReadImageSet(folder / "svhn-test.bin", &images, &name), "");
  EXPECT_EQ(name, "svhn-test");
  EXPECT_EQ(images.count, 2);
  EXPECT_EQ(images.labels, (std::vector<int32_t>{3, 200}));
  for (int p = 0; p < 1024; ++p) {
    for (int c = 0; c < 3; ++c) {
      EXPECT_EQ(images.pixels[3 * p + c], c * 80 + (c * 1024 + p) % 7 + 1);
      EXPECT_EQ(images.pixels[3072 + 3 * p + c], c * 80 + (c * 1024 + p) % 7);
    }
  }
}

TEST(ImageSetTest, FindsTheTestImagesOfCifar) {
  const TestFolder folder;
  WriteFiles(folder / "cifar-100-binary",
             {{"test.bin", CifarRecords(CifarSet::kCifar100, 5, 100, 1)}});
  LabelledImages images, direct, file;
  std::string name;
  ASSERT_EQ(ReadImageSet(folder.path(), &images, &name), "");
  EXPECT_EQ(name, "cifar100");
  ASSERT_EQ(ReadImageSet(folder / "cifar-100-binary", &direct, &name), "");
  ASSERT_EQ(ReadImageSet(folder / "cifar-100-binary/test.bin", &file, &name), "");
  EXPECT_EQ(name, "test");
  EXPECT_EQ(images.count, 5);
  EXPECT_TRUE(images.pixels == direct.pixels && images.pixels == file.pixels);
  // The fine label, the second byte.
  EXPECT_EQ(images.labels.size(), 5);
  WriteFiles(folder / "cifar-10-batches-bin",
             {{"test_batch.bin", CifarRecords(CifarSet::kCifar10, 4, 10, 1)}});
  ASSERT_EQ(ReadImageSet(folder / "cifar-10-batches-bin", &images, &name), "");
  EXPECT_EQ(name, "cifar10");
  EXPECT_EQ(images.count, 4);
  const std::string both = ReadImageSet(folder.path(), &images, &name);
  EXPECT_THAT(both, HasSubstr("it holds both "));
  EXPECT_THAT(both, HasSubstr("name one"));
}

TEST(ImageSetTest, WrongSizesAndPlacesAreNamed) {
  const TestFolder folder;
  WriteBytes(folder / "short.bin", std::string(3072, 'x'));
  WriteBytes(folder / "empty.bin", "");
  WriteFiles(folder / "cifar-10-batches-bin", {{"test_batch.bin", std::string(3074, 'x')}});
  std::filesystem::create_directory(folder / "nothing");
  LabelledImages images;
  images.count = 7;
  std::string name = "before";
  const auto complaint = [&](const std::string& path) {
    return ReadImageSet(folder / path, &images, &name);
  };
  EXPECT_THAT(complaint("short.bin"),
              HasSubstr("short.bin has 3072 bytes instead of whole records of 3073 or, as in "
                        "CIFAR-100, 3074 bytes"));
  EXPECT_THAT(complaint("short.bin"), HasSubstr("`ood` must be"));
  EXPECT_THAT(complaint("short.bin"), HasSubstr("Received: ood=" + folder.path()));
  EXPECT_THAT(complaint("empty.bin"), HasSubstr("has 0 bytes"));
  EXPECT_THAT(complaint("cifar-10-batches-bin"), HasSubstr("test_batch.bin has 3074 bytes"));
  EXPECT_THAT(complaint("nothing"), HasSubstr("it holds neither test_batch.bin (CIFAR-10) nor"));
  EXPECT_THAT(complaint("nowhere"), HasSubstr("No such file or directory"));
  EXPECT_EQ(images.count, 7);
  EXPECT_EQ(name, "before");
}

// A .npy file as NumPy writes it: the header is padded with blanks to a multiple of 64 bytes.
std::string Npy(const std::string& descr, const std::string& shape, const std::string& data,
                const std::string& order = "False", char version = 1) {
  std::string header =
      "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
  const size_t before = version == 1 ? 10 : 12;
  header.append(63 - (before + header.size()) % 64, ' ');
  header += '\n';
  std::string bytes = std::string("\x93NUMPY") + version + '\0';
  for (size_t i = 0; i < before - 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i));
  return bytes + header + data;
}

TEST(NpyTest, ReadsRows) {
  const TestFolder folder;
  for (const char version : {1, 2, 3}) {
    WriteBytes(folder / "a.npy", Npy("|u1", "(3, 2)", "abcdef", "False", version));
    NpyFile file;
    ASSERT_EQ(file.Open(folder / "a.npy"), "");
    EXPECT_EQ(file.Text(), "|u1[3,2]");
    std::vector<uint8_t> rows;
    ASSERT_EQ(file.ReadBytes(1, 2, &rows), "");
    EXPECT_EQ(std::string(rows.begin(), rows.end()), "cdef");
    ASSERT_EQ(file.ReadBytes(0, 1, &rows), "");
    EXPECT_EQ(std::string(rows.begin(), rows.end()), "ab");
  }
}

TEST(NpyTest, ReadsNumbersOfSeveralTypes) {
  const TestFolder folder;
  const std::string minus(8, '\xff');
  for (const auto& [descr, bytes] :
       {std::pair<std::string, size_t>{"<i8", 8}, {"<i4", 4}, {"<i2", 2}, {"|i1", 1}}) {
    WriteBytes(folder / "a.npy",
               Npy(descr, "(2,)", minus.substr(0, bytes) + "\x05" + std::string(bytes - 1, '\0')));
    NpyFile file;
    ASSERT_EQ(file.Open(folder / "a.npy"), "");
    std::vector<int64_t> numbers;
    ASSERT_EQ(file.ReadNumbers(0, 2, &numbers), "");
    EXPECT_EQ(numbers, (std::vector<int64_t>{-1, 5})) << descr;
  }
  WriteBytes(folder / "a.npy", Npy("|u1", "(1,)", "\xff"));
  NpyFile file;
  ASSERT_EQ(file.Open(folder / "a.npy"), "");
  std::vector<int64_t> numbers;
  ASSERT_EQ(file.ReadNumbers(0, 1, &numbers), "");
  EXPECT_EQ(numbers[0], 255);
}

TEST(NpyTest, EveryDamageIsNamed) {
  const TestFolder folder;
  const std::string good = Npy("|u1", "(3, 2)", "abcdef");
  const auto complaint = [&](const std::string& bytes) {
    WriteBytes(folder / "a.npy", bytes);
    return NpyFile().Open(folder / "a.npy");
  };
  EXPECT_EQ(complaint(good), "");
  const std::string place = folder / "a.npy";
  EXPECT_EQ(complaint(""), place + " does not begin like a .npy file");
  EXPECT_EQ(complaint("PK\x03\x04 and more"), place + " does not begin like a .npy file");
  EXPECT_THAT(complaint(Npy("|u1", "(1,)", "a", "False", 9)), HasSubstr("version 9"));
  EXPECT_EQ(complaint(good.substr(0, 9)), place + " ends within its header");
  EXPECT_EQ(complaint(good.substr(0, 40)), place + " ends within its header");
  EXPECT_THAT(complaint(Npy("|u1", "(3, 2)", "abcde")), HasSubstr("bytes instead of "));
  EXPECT_THAT(complaint(Npy("|u1", "(3, 2)", "abcdefg")), HasSubstr("the size of |u1[3,2]"));
  EXPECT_THAT(complaint(Npy("<f4", "(1,)", "abcd")),
              HasSubstr("elements of type '<f4' instead of integers"));
  EXPECT_THAT(complaint(Npy(">i4", "(1,)", "abcd")), HasSubstr("'>i4'"));
  EXPECT_THAT(complaint(Npy("|u1", "(3, 2)", "abcdef", "True")), HasSubstr("Fortran's order"));
  EXPECT_THAT(complaint(Npy("|u1", "()", "a")), HasSubstr("the shape () instead of"));
  EXPECT_THAT(complaint(Npy("|u1", "(-1, 2)", "ab")), HasSubstr("the shape (-1, 2)"));
  EXPECT_THAT(complaint(Npy("|u1", "(99999999999, 99999999999)", "ab")), HasSubstr("the shape"));
  EXPECT_THAT(complaint(Npy("|u1", "(0, 99999999999, 99999999999)", "")), HasSubstr("the shape"));
  EXPECT_THAT(complaint(Npy("|u1", "6", "abcdef")), HasSubstr("the shape 6"));
  std::string nameless = good;
  nameless.replace(nameless.find("shape"), 5, "shade");
  EXPECT_THAT(complaint(nameless), HasSubstr("without descr, fortran_order and shape"));
  EXPECT_THAT(NpyFile().Open(folder / "none.npy"), HasSubstr("No such file"));
  EXPECT_THAT(NpyFile().Open(folder.path()), HasSubstr("is a folder"));
}

// Two images per severity: all pixels of corruption c, severity s are 16 c + s.
void WriteCorruptions(const std::string& folder) {
  for (size_t c = 0; c < kCorruptions.size(); ++c) {
    std::string data;
    for (size_t s = 1; s <= 5; ++s) data += std::string(2 * 3072, static_cast<char>(16 * c + s));
    WriteBytes(folder + "/" + kCorruptions[c] + ".npy", Npy("|u1", "(10, 32, 32, 3)", data));
  }
  WriteBytes(folder + "/labels.npy", Npy("|u1", "(10,)", std::string("\1\2\1\2\1\2\1\2\1\3")));
}

TEST(CorruptedImagesTest, ReadsSeveritiesInTheirOrder) {
  const TestFolder folder;
  WriteCorruptions(folder.path());
  CorruptedImages corrupted;
  ASSERT_EQ(corrupted.Open(folder.path(), 10), "");
  EXPECT_EQ(corrupted.count(), 2);
  EXPECT_EQ(corrupted.source(), folder.path());
  LabelledImages images;
  ASSERT_EQ(corrupted.Read("fog", 4, &images), "");
  EXPECT_EQ(images.pixels, std::vector<uint8_t>(2 * 3072, 16 * 9 + 4));
  EXPECT_EQ(images.labels, (std::vector<int32_t>{1, 2}));
  ASSERT_EQ(corrupted.Read("jpeg_compression", 5, &images), "");
  EXPECT_EQ(images.pixels[0], 16 * 14 + 5);
  EXPECT_EQ(images.labels, (std::vector<int32_t>{1, 3}));
  WriteBytes(folder / "source.txt", "made by hand\n");
  ASSERT_EQ(corrupted.Open(folder.path(), 10), "");
  EXPECT_EQ(corrupted.source(), "made by hand");
}

TEST(CorruptedImagesTest, WhatIsWrongIsNamed) {
  const TestFolder folder;
  CorruptedImages corrupted;
  EXPECT_THAT(corrupted.Open(folder.path(), 10), HasSubstr("labels.npy: No such file"));
  WriteCorruptions(folder.path());
  EXPECT_THAT(corrupted.Open(folder.path(), 3), HasSubstr("has label 3 instead of one below 3"));
  WriteBytes(folder / "snow.npy", Npy("|u1", "(10, 3, 32, 32)", std::string(10 * 3072, 'x')));
  EXPECT_THAT(corrupted.Open(folder.path(), 10),
              HasSubstr("snow.npy is |u1[10,3,32,32] instead of |u1[10,32,32,3]"));
  EXPECT_THAT(corrupted.Open(folder.path(), 10), HasSubstr("`corrupt` must be"));
  std::filesystem::remove(folder / "snow.npy");
  EXPECT_THAT(corrupted.Open(folder.path(), 10), HasSubstr("snow.npy: No such file"));
  WriteBytes(folder / "labels.npy", Npy("|u1", "(9,)", std::string(9, '\1')));
  EXPECT_THAT(corrupted.Open(folder.path(), 10),
              HasSubstr("labels.npy is |u1[9] instead of [5·n]"));
}

}  // namespace
}  // namespace late_phase
