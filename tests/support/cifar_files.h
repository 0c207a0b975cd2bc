// Small generated CIFAR files, in a folder or an archive, for tests.
#ifndef LATE_PHASE_TESTS_SUPPORT_CIFAR_FILES_H_
#define LATE_PHASE_TESTS_SUPPORT_CIFAR_FILES_H_

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "models/images/cifar_images.h"

namespace late_phase {

// A folder that lasts as long as a test.
class TestFolder {
 public:
  TestFolder() {
    static int number = 0;
    path_ = std::filesystem::path(testing::TempDir()) /
            ("cifar-" + std::to_string(getpid()) + "-" + std::to_string(number++));
    std::filesystem::create_directory(path_);
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  std::string path() const { return path_.string(); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

struct NamedBytes {
  std::string name, bytes;
};

inline void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Records whose images can be told apart: each class has a colour and horizontal stripes, under
// noise. The first `classes` classes occur about equally often, in random order.
inline std::string CifarRecords(CifarSet set, int64_t records, int64_t classes, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<int> labels(records);
  for (int64_t i = 0; i < records; ++i) labels[i] = static_cast<int>(i % classes);
  for (int64_t i = records; i > 1; --i) std::swap(labels[i - 1], labels[engine() % i]);
  std::string bytes;
  for (const int label : labels) {
    if (set == CifarSet::kCifar100) bytes += static_cast<char>(label / 5);
    bytes += static_cast<char>(label);
    const int shuffled = label * 37 % 125;  // its base-5 digits are the levels of the three colours
    for (const int level : {shuffled % 5, shuffled / 5 % 5, shuffled / 25}) {
      for (int row = 0; row < 32; ++row) {
        const int stripe = row / (1 + label % 6) % 2 == 0 ? 20 : -20;
        for (int column = 0; column < 32; ++column) {
          const int noise = static_cast<int>(engine() % 65) - 32;
          bytes += static_cast<char>(56 + 36 * level + stripe + noise);
        }
      }
    }
  }
  return bytes;
}

// All files of a set, in the order in which they are published.
inline std::vector<NamedBytes> CifarFiles(CifarSet set, int64_t train_per_file, int64_t test,
                                          int64_t classes, uint64_t seed) {
  std::vector<NamedBytes> files;
  if (set == CifarSet::kCifar10) {
    for (const char* number : {"1", "2", "3", "4", "5"}) {
      files.push_back({std::string("data_batch_") + number + ".bin",
                       CifarRecords(set, train_per_file, classes, seed++)});
    }
    files.push_back({"test_batch.bin", CifarRecords(set, test, classes, seed)});
  } else {
    files.push_back({"train.bin", CifarRecords(set, train_per_file, classes, seed++)});
    files.push_back({"test.bin", CifarRecords(set, test, classes, seed)});
  }
  return files;
}

// Into the folder, which is created if necessary.
inline void WriteFiles(const std::string& folder, const std::vector<NamedBytes>& files) {
  std::filesystem::create_directories(folder);
  for (const NamedBytes& file : files) {
    WriteBytes((std::filesystem::path(folder) / file.name).string(), file.bytes);
  }
}

// A header written by hand, so that tests can make it lie. type: '0' file, '2' link, '5' folder.
// size: 12 characters, octal digits as a rule.
inline std::string TarHeader(const std::string& name, const std::string& size, char type = '0') {
  std::string header(512, '\0');
  const auto put = [&](size_t place, const std::string& text) {
    header.replace(place, text.size(), text);
  };
  put(0, name.substr(0, 100));
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(124, size);
  put(136, "00000000000");
  put(148, "        ");  // counts as blanks in the checksum
  header[156] = type;
  put(257, std::string("ustar\00000", 8));
  unsigned sum = 0;
  for (const char byte : header) sum += static_cast<unsigned char>(byte);
  char checksum[8];
  std::snprintf(checksum, sizeof(checksum), "%06o", sum % (1u << 18));
  put(148, std::string(checksum, 7));
  return header;
}

inline std::string TarMember(const NamedBytes& file) {
  char size[16];
  std::snprintf(size, sizeof(size), "%011llo", static_cast<unsigned long long>(file.bytes.size()));
  std::string member = TarHeader(file.name, size) + file.bytes;
  return member.append((512 - member.size() % 512) % 512, '\0');
}

inline std::string Tar(const std::vector<NamedBytes>& files, const std::string& folder = "") {
  std::string tar;
  for (const NamedBytes& file : files) tar += TarMember({folder + file.name, file.bytes});
  return tar.append(1024, '\0');
}

inline std::string Gzip(const std::string& bytes) {
  z_stream stream = {};
  constexpr int kGzip = 16;
  deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzip + MAX_WBITS, 8,
               Z_DEFAULT_STRATEGY);
  std::string packed(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_SUPPORT_CIFAR_FILES_H_
