// Whole files, for the commands; errors are exceptions. The work is done by optimizers/disk.h.
#ifndef LATE_PHASE_TOOLS_PROGRAM_FILES_H_
#define LATE_PHASE_TOOLS_PROGRAM_FILES_H_

#include <string>

namespace late_phase {

// The file's bytes. Throws std::runtime_error with path and reason.
std::string ReadFile(const std::string& path);

// Writes a temporary file in the same folder, waits for the disk, and renames it: afterwards `path`
// holds all of `text`, and until then what it held before (optimizers/disk.h). Throws
// std::runtime_error with path and reason, also if the disk does not confirm the write.
void WriteFile(const std::string& path, const std::string& text);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_FILES_H_
