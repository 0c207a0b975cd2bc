// NumPy's files (.npy), as sets of corrupted images have them.
#include "models/images/npy.h"
#include "tests/campaign/bytes/parser.h"

namespace late_phase {
namespace {

std::string Npy(const std::string& header, size_t elements, char version = 1) {
  std::string bytes = "\x93NUMPY";
  bytes += {version, 0, static_cast<char>(header.size()), 0};
  if (version > 1) bytes += {0, 0};
  return bytes + header + std::string(elements, '\7');
}

}  // namespace

std::vector<std::string> GoodInputs() {
  return {
      Npy("{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3, 2), }\n", 12),
      Npy("{'descr': '<i8', 'fortran_order': False, 'shape': (5,), }\n", 40),
      Npy("{'shape': (3, 1), 'descr': '<u2', 'fortran_order': False}", 6, 2),
      Npy("{'descr': '|i1', 'fortran_order': False, 'shape': (0, 99999999999, 9), }\n", 0, 3),
  };
}

void Parse(const std::string& bytes) {
  const std::string path = WriteFile("labels.npy", bytes);
  NpyFile file;
  const std::string complaint = file.Open(path);
  if (!complaint.empty()) {
    MustName(complaint, path);
    ++outcomes.refused;
    return;
  }
  ++outcomes.accepted;
  const int64_t rows = file.shape()[0];
  int64_t row = 1;
  for (size_t i = 1; i < file.shape().size(); ++i) row *= file.shape()[i];
  std::vector<int64_t> numbers;
  Must(file.ReadNumbers(0, rows, &numbers).empty(), "all rows can be read");
  Must(static_cast<int64_t>(numbers.size()) == rows * row, "as many numbers as the shape says");
  std::vector<uint8_t> values;
  const std::string refused = file.ReadBytes(rows > 0 ? rows - 1 : 0, rows > 0 ? 1 : 0, &values);
  Must(refused.empty() == (file.dtype() == "|u1"), "bytes are read as bytes only");
}

}  // namespace late_phase
