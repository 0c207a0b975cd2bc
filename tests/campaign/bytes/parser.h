// A parser that is given bytes at random, and what must hold of its answers. Each NAME_bytes.cc
// defines one; bytes_test.cc calls it with damaged inputs, libFuzzer with whatever it finds.
#ifndef LATE_PHASE_TESTS_CAMPAIGN_BYTES_PARSER_H_
#define LATE_PHASE_TESTS_CAMPAIGN_BYTES_PARSER_H_

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace late_phase {

// Inputs that the parser accepts.
std::vector<std::string> GoodInputs();

// Parses the bytes; ends the process if what must hold does not.
void Parse(const std::string& bytes);

// Whether the last bytes were accepted is up to them; that both happen is checked over many.
struct Outcomes {
  int accepted = 0, refused = 0;
};
inline Outcomes outcomes;

inline void Must(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "this does not hold: %s\n", what.c_str());
  std::abort();
}

// A refusal names what was given.
inline void MustName(const std::string& message, const std::string& name) {
  Must(message.find(name) != std::string::npos, "the message names " + name + ": " + message);
}

// A file with these bytes, of this process alone; the next call with the name overwrites it.
inline std::string WriteFile(const std::string& name, const std::string& bytes) {
  const char* folder = std::getenv("TEST_TMPDIR");
  const std::filesystem::path path =
      (folder != nullptr ? std::filesystem::path(folder) : std::filesystem::temp_directory_path()) /
      name;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
  return path.string();
}

}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_CAMPAIGN_BYTES_PARSER_H_
