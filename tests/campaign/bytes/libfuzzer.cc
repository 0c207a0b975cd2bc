// Hands a parser to libFuzzer, which brings main() and begins with the good inputs.
#include <cstdint>

#include "tests/campaign/bytes/parser.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  late_phase::Parse(std::string(reinterpret_cast<const char*>(bytes), size));
  return 0;
}

// Adds a folder with the good inputs to the arguments.
extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  static std::string folder;
  int number = 0;
  for (const std::string& bytes : late_phase::GoodInputs()) {
    const std::string path =
        late_phase::WriteFile("inputs/good-" + std::to_string(number++), bytes);
    folder = std::filesystem::path(path).parent_path().string();
  }
  static std::vector<char*> more;
  more.assign(*arguments, *arguments + *count);
  more.push_back(folder.data());
  more.push_back(nullptr);
  *arguments = more.data();
  ++*count;
  return 0;
}
