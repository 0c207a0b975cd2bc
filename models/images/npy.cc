#include "models/images/npy.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace late_phase {
namespace {

constexpr int64_t kMostHeader = 1 << 16;  // a longer header is damaged
constexpr int64_t kMostElements = int64_t{1} << 40;

// What follows 'key': in the header, up to the comma or brace that ends it.
bool Field(const std::string& header, const std::string& key, std::string* value) {
  size_t at = header.find("'" + key + "'");
  if (at == std::string::npos) return false;
  at = header.find(':', at);
  if (at == std::string::npos) return false;
  const size_t begin = header.find_first_not_of(' ', at + 1);
  if (begin == std::string::npos) return false;
  const size_t end =
      header[begin] == '(' ? header.find(')', begin) : header.find_first_of(",}", begin);
  if (end == std::string::npos) return false;
  *value = header.substr(begin, end - begin + (header[begin] == '(' ? 1 : 0));
  return true;
}

// "(50000, 32, 32, 3)"
bool ParseShape(const std::string& text, std::vector<int64_t>* shape) {
  shape->clear();
  if (text.size() < 2 || text.front() != '(' || text.back() != ')') return false;
  int64_t elements = 1;  // of an array with 1 in place of each 0: rows have a size, too
  size_t at = 1;
  while (true) {
    at = text.find_first_not_of(" ,", at);
    if (text[at] == ')') return true;
    const size_t end = text.find_first_not_of("0123456789", at);
    if (end == at || end - at > 12) return false;
    shape->push_back(std::stoll(text.substr(at, end - at)));
    const int64_t factor = std::max<int64_t>(shape->back(), 1);
    if (elements > kMostElements / factor) return false;
    elements *= factor;
    at = end;
  }
}

// 0: not an integer of a known size.
int64_t ItemBytes(const std::string& dtype) {
  for (const char* known : {"|u1", "|i1", "<i2", "<u2", "<i4", "<u4", "<i8"}) {
    if (dtype == known) return known[2] - '0';
  }
  return 0;
}

}  // namespace

std::string NpyFile::Open(const std::string& path) {
  path_ = path;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return path + " is a folder, not a .npy file";
  errno = 0;
  stream_ = std::ifstream(path, std::ios::binary);
  if (!stream_) return path + ": " + (errno != 0 ? std::strerror(errno) : "cannot be read");
  const int64_t size = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (error) return path + ": " + error.message();

  uint8_t start[12] = {};
  stream_.read(reinterpret_cast<char*>(start), 8);
  if (!stream_ || std::memcmp(start, "\x93NUMPY", 6) != 0) {
    return path + " does not begin like a .npy file";
  }
  if (start[6] < 1 || start[6] > 3) {
    return path + " is of version " + std::to_string(start[6]) +
           " of the .npy format instead of 1 to 3";
  }
  const int length_bytes = start[6] == 1 ? 2 : 4;
  stream_.read(reinterpret_cast<char*>(start + 8), length_bytes);
  int64_t length = 0;
  for (int i = length_bytes - 1; i >= 0; --i) length = length << 8 | start[8 + i];
  data_ = 8 + length_bytes + length;
  if (!stream_ || length > kMostHeader || data_ > size) return path + " ends within its header";
  std::string header(static_cast<size_t>(length), '\0');
  stream_.read(header.data(), length);
  std::string descr, order, shape;
  if (!stream_ || !Field(header, "descr", &descr) || !Field(header, "fortran_order", &order) ||
      !Field(header, "shape", &shape)) {
    return path + " has a header without descr, fortran_order and shape";
  }
  dtype_ = descr.size() > 2 ? descr.substr(1, descr.size() - 2) : descr;  // between quotes
  item_ = ItemBytes(dtype_);
  if (item_ == 0) return path + " has elements of type " + descr + " instead of integers, as |u1";
  if (order != "False") return path + " is in Fortran's order instead of C's";
  if (!ParseShape(shape, &shape_) || shape_.empty()) {
    return path + " has the shape " + shape + " instead of one with at least one dimension";
  }
  row_ = item_;
  for (size_t i = 1; i < shape_.size(); ++i) row_ *= shape_[i];
  const int64_t expected = data_ + shape_[0] * row_;
  if (size != expected) {
    return path + " has " + std::to_string(size) + " bytes instead of " + std::to_string(expected) +
           ", the size of " + Text();
  }
  return "";
}

std::string NpyFile::Text() const {
  std::string text = dtype_ + "[";
  for (size_t i = 0; i < shape_.size(); ++i) text += (i > 0 ? "," : "") + std::to_string(shape_[i]);
  return text + "]";
}

std::string NpyFile::Rows(int64_t begin, int64_t count, std::vector<uint8_t>* bytes) {
  bytes->resize(static_cast<size_t>(count * row_));
  stream_.clear();
  stream_.seekg(data_ + begin * row_);
  errno = 0;
  if (stream_.read(reinterpret_cast<char*>(bytes->data()), count * row_)) return "";
  return path_ + ": " + (errno != 0 ? std::strerror(errno) : "cannot be read");
}

std::string NpyFile::ReadBytes(int64_t begin, int64_t count, std::vector<uint8_t>* values) {
  if (dtype_ != "|u1") return path_ + " has elements of type " + dtype_ + " instead of |u1";
  return Rows(begin, count, values);
}

std::string NpyFile::ReadNumbers(int64_t begin, int64_t count, std::vector<int64_t>* values) {
  std::vector<uint8_t> bytes;
  std::string complaint = Rows(begin, count, &bytes);
  if (!complaint.empty()) return complaint;
  values->clear();
  const bool is_signed = dtype_[1] == 'i';
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(item_)) {
    uint64_t bits = 0;
    for (int64_t i = item_ - 1; i >= 0; --i) bits = bits << 8 | bytes[at + static_cast<size_t>(i)];
    const int unused = static_cast<int>(64 - 8 * item_);
    const int64_t extended = static_cast<int64_t>(bits << unused) >> unused;
    values->push_back(is_signed ? extended : static_cast<int64_t>(bits));
  }
  return "";
}

}  // namespace late_phase
