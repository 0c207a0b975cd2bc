#include "models/images/cifar_images.h"

#include <archive.h>
#include <archive_entry.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "models/images/cifar_records.h"

namespace late_phase {
namespace {

// The published binary version of a set.
struct Publication {
  const char* name;
  int64_t classes;
  int64_t label_bytes;             // of a record; the last of them is the label
  int64_t most_records;            // of a file
  std::vector<std::string> files;  // training files, then the test file
  const char* folder;
  const char* archive;
  const char* md5;  // of the archive

  int64_t record_bytes() const { return label_bytes + kCifarImageBytes; }
};

const Publication& FindPublication(CifarSet set) {
  static const Publication* const cifar10 =
      new Publication{"CIFAR-10",
                      /*classes=*/10,
                      /*label_bytes=*/1,
                      /*most_records=*/10000,
                      {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                       "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"},
                      "cifar-10-batches-bin",
                      "cifar-10-binary.tar.gz",
                      "c32a1d4ab5d03f1284b67883e8d87530"};
  static const Publication* const cifar100 = new Publication{"CIFAR-100",
                                                             /*classes=*/100,
                                                             /*label_bytes=*/2,
                                                             /*most_records=*/50000,
                                                             {"train.bin", "test.bin"},
                                                             "cifar-100-binary",
                                                             "cifar-100-binary.tar.gz",
                                                             "03b5dce01913d631647c71ecec9e9cb8"};
  return set == CifarSet::kCifar10 ? *cifar10 : *cifar100;
}

struct File {
  std::string place;  // for error messages
  std::vector<uint8_t> bytes;
};

std::string Listed(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

std::string CheckSize(const Publication& published, const std::string& place, int64_t bytes) {
  const int64_t record = published.record_bytes();
  if (bytes > 0 && bytes % record == 0 && bytes / record <= published.most_records) return "";
  return place + " has " + std::to_string(bytes) + " bytes instead of 1 to " +
         std::to_string(published.most_records) + " whole records of " + std::to_string(record) +
         " bytes";
}

// The following two read those of the published files that exist; files: [published.files].

std::string ReadFolder(const Publication& published, const std::filesystem::path& folder,
                       std::vector<File>* files) {
  for (size_t i = 0; i < files->size(); ++i) {
    const std::filesystem::path path = folder / published.files[i];
    File& file = (*files)[i];
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(path, error);
    if (status.type() == std::filesystem::file_type::not_found) continue;
    if (!error && !std::filesystem::is_regular_file(status)) {
      return path.string() + " is not a file";
    }
    const int64_t size = error ? 0 : std::filesystem::file_size(path, error);
    if (error) return path.string() + ": " + error.message();
    std::string complaint = CheckSize(published, path.string(), size);
    if (!complaint.empty()) return complaint;
    file.place = path.string();
    complaint = ReadBytes(path, size, &file.bytes);
    if (!complaint.empty()) return complaint;
  }
  return "";
}

// A gzip file, block by block. libarchive could unpack it, but does not verify checksums, so damage
// would become pixels. zlib verifies them.
class GzipFile {
 public:
  explicit GzipFile(const std::filesystem::path& path)
      : file_(gzopen(path.c_str(), "rb")), block_(1 << 18) {
    if (file_ == nullptr) complaint_ = path.string() + ": " + std::strerror(errno);
  }
  ~GzipFile() {
    if (file_ != nullptr) gzclose(file_);
  }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  // The size of the next block; 0 at the end, -1 after an error.
  int64_t Next() {
    if (!complaint_.empty()) return -1;
    const int bytes = gzread(file_, block_.data(), static_cast<unsigned>(block_.size()));
    int state = Z_OK;
    const char* message = gzerror(file_, &state);  // begins with the path
    // A file that ends too early sets this state, but does not give a negative number of bytes.
    if (state != Z_OK && state != Z_STREAM_END) complaint_ = message;
    return complaint_.empty() ? bytes : -1;
  }
  const uint8_t* block() const { return block_.data(); }
  const std::string& complaint() const { return complaint_; }

  // For libarchive, whose `client` is a GzipFile.
  static la_ssize_t Read(archive* /*reader*/, void* client, const void** block) {
    GzipFile* gzip = static_cast<GzipFile*>(client);
    const int64_t bytes = gzip->Next();
    *block = gzip->block();
    return bytes;
  }

 private:
  gzFile file_;
  std::vector<uint8_t> block_;
  std::string complaint_;
};

std::string ReadArchive(const Publication& published, const std::filesystem::path& path,
                        std::vector<File>* files) {
  GzipFile gzip(path);
  const std::unique_ptr<archive, decltype(&archive_read_free)> reader(archive_read_new(),
                                                                      archive_read_free);
  const auto damage = [&] {
    if (!gzip.complaint().empty()) return gzip.complaint();
    const char* message = archive_error_string(reader.get());
    return path.string() + ": " + (message != nullptr ? message : "not a readable archive");
  };
  archive_read_support_format_tar(reader.get());
  if (archive_read_open(reader.get(), &gzip, nullptr, GzipFile::Read, nullptr) != ARCHIVE_OK) {
    return damage();
  }
  archive_entry* entry = nullptr;
  int state = ARCHIVE_OK;
  while ((state = archive_read_next_header(reader.get(), &entry)) == ARCHIVE_OK ||
         state == ARCHIVE_WARN) {
    const char* member = archive_entry_pathname(entry);
    if (member == nullptr || archive_entry_filetype(entry) != AE_IFREG) continue;
    const std::string name = std::filesystem::path(member).filename().string();
    const auto found = std::find(published.files.begin(), published.files.end(), name);
    if (found == published.files.end()) continue;
    File& file = (*files)[found - published.files.begin()];
    const std::string place = name + " in " + path.string();
    if (!file.bytes.empty()) return place + " appears twice";
    const int64_t size = archive_entry_size(entry);
    const std::string complaint = CheckSize(published, place, size);
    if (!complaint.empty()) return complaint;
    file = {place, std::vector<uint8_t>(size)};
    if (archive_read_data(reader.get(), file.bytes.data(), size) != size) return damage();
  }
  if (state != ARCHIVE_EOF) return damage();
  while (gzip.Next() > 0) {  // the checksum is at the very end
  }
  return gzip.complaint();
}

// Appends to pixels and labels, which have the capacity.
std::string Decode(const Publication& published, const File& file, LabelledImages* images) {
  const int64_t records = file.bytes.size() / published.record_bytes();
  const uint8_t* record = file.bytes.data();
  for (int64_t i = 0; i < records; ++i, record += published.record_bytes()) {
    const int label = record[published.label_bytes - 1];
    if (label >= published.classes) {
      return "record " + std::to_string(i) + " of " + file.place + " has label " +
             std::to_string(label) + " instead of one below " + std::to_string(published.classes);
    }
    DecodeCifarImage(record + published.label_bytes,
                     &images->pixels[images->count * kCifarImageBytes]);
    images->labels[images->count++] = label;
  }
  return "";
}

// Joins the files [begin, end), freeing each when it is done with it.
std::string Decode(const Publication& published, std::vector<File>::iterator begin,
                   std::vector<File>::iterator end, LabelledImages* images) {
  int64_t records = 0;
  for (auto file = begin; file != end; ++file) {
    records += file->bytes.size() / published.record_bytes();
  }
  images->side = kCifarSide;
  images->pixels.resize(records * kCifarImageBytes);
  images->labels.resize(records);
  for (auto file = begin; file != end; ++file) {
    const std::string complaint = Decode(published, *file, images);
    if (!complaint.empty()) return complaint;
    *file = {};
  }
  return "";
}

// The folder or archive that `path` stands for.
std::filesystem::path Find(const Publication& published, const std::filesystem::path& path) {
  std::error_code ignored;
  const auto has = [&](const std::string& name) {
    return std::filesystem::exists(path / name, ignored);
  };
  if (std::all_of(published.files.begin(), published.files.end(), has)) return path;
  for (const char* name : {published.folder, published.archive}) {
    if (has(name)) return path / name;
  }
  return path;
}

std::string Read(const Publication& published, const std::filesystem::path& path,
                 CifarImages* images) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (error) return path.string() + ": " + error.message();
  std::vector<File> files(published.files.size());
  std::string complaint;
  if (std::filesystem::is_directory(status)) {
    complaint = ReadFolder(published, path, &files);
  } else if (std::filesystem::is_regular_file(status)) {
    complaint = ReadArchive(published, path, &files);
  } else {
    complaint = path.string() + " is neither a folder nor a file";
  }
  if (!complaint.empty()) return complaint;

  std::vector<std::string> missing;
  for (size_t i = 0; i < files.size(); ++i) {
    if (files[i].bytes.empty()) missing.push_back(published.files[i]);
  }
  if (!missing.empty()) return path.string() + " lacks " + Listed(missing);

  CifarImages read;
  read.classes = published.classes;
  complaint = Decode(published, files.begin(), files.end() - 1, &read.training);
  if (complaint.empty()) complaint = Decode(published, files.end() - 1, files.end(), &read.test);
  if (complaint.empty()) *images = std::move(read);
  return complaint;
}

}  // namespace

std::string ReadCifar(CifarSet set, const std::string& path, CifarImages* images) {
  const Publication& published = FindPublication(set);
  const std::string complaint = Read(published, Find(published, path), images);
  if (complaint.empty()) return "";
  return std::string("`data` must hold the binary version of ") + published.name + ", " +
         Listed(published.files) + ", in the folder " + published.folder + " or in " +
         published.archive + ", from https://www.cs.toronto.edu/~kriz/" + published.archive +
         " (md5 " + published.md5 + "). Received: data=" + path + " (" + complaint + ")";
}

}  // namespace late_phase
