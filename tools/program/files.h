// Whole files, for the commands, which throw; what does the work is optimizers/disk.h.
#ifndef LATE_PHASE_TOOLS_PROGRAM_FILES_H_
#define LATE_PHASE_TOOLS_PROGRAM_FILES_H_

#include <string>

namespace late_phase {

// The file's bytes. Throws std::runtime_error with path and reason.
std::string ReadFile(const std::string& path);

// Writes aside in the same folder, waits for the disk, renames: afterwards `path` holds all of
// `text`, and until then what it held before (optimizers/disk.h). Throws std::runtime_error with
// path and reason, a disk that does not confirm being one.
void WriteFile(const std::string& path, const std::string& text);

// Makes the folder that `--out` names, if need be. Throws UsageError if nothing can be written
// there: called before hours of work rather than found out after them.
void MakeOutFolder(const std::string& folder);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_FILES_H_
