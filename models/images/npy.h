// Arrays in NumPy's file format (.npy, versions 1 to 3), as far as images and labels need it: C
// order, little-endian, integers. No TensorFlow.
//
// The format: the magic "\x93NUMPY", two bytes of version, the header's length (2 bytes; 4 from
// version 2 on), the header, a Python dictionary with 'descr', 'fortran_order' and 'shape', then
// the elements.
#ifndef LATE_PHASE_MODELS_IMAGES_NPY_H_
#define LATE_PHASE_MODELS_IMAGES_NPY_H_

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace late_phase {

// An array on disk that is read in parts.
class NpyFile {
 public:
  // Reads the header, and checks that no elements are missing. Returns an error message, which
  // begins with the path, or an empty string.
  [[nodiscard]] std::string Open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::string& dtype() const { return dtype_; }  // "|u1", "<i8", …
  const std::vector<int64_t>& shape() const { return shape_; }
  std::string Text() const;  // "|u1[50000,32,32,3]"

  // Rows [begin, begin + count) of the first dimension. REQUIRES: the array has them. ReadBytes is
  // only for "|u1", ReadNumbers for |u1, |i1, <i2, <i4, <i8, <u2 and <u4.
  [[nodiscard]] std::string ReadBytes(int64_t begin, int64_t count, std::vector<uint8_t>* values);
  [[nodiscard]] std::string ReadNumbers(int64_t begin, int64_t count, std::vector<int64_t>* values);

 private:
  [[nodiscard]] std::string Rows(int64_t begin, int64_t count, std::vector<uint8_t>* bytes);

  std::string path_, dtype_;
  std::vector<int64_t> shape_;
  int64_t item_ = 0, row_ = 0;  // bytes of an element, of a row
  int64_t data_ = 0;            // where the elements begin
  std::ifstream stream_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_NPY_H_
