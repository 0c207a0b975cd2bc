// The folder that `--out` names: what may be in it before a command begins.
#ifndef LATE_PHASE_TOOLS_PROGRAM_OUT_FOLDER_H_
#define LATE_PHASE_TOOLS_PROGRAM_OUT_FOLDER_H_

#include <string>

#include "optimizers/disk.h"

namespace late_phase {

// Creates the folder, if need be. Throws UsageError if nothing can be written there. Called before
// hours of work, so that a bad folder is not discovered after them.
void MakeOutFolder(const std::string& folder);

// Creates the folder, likewise, and keeps other trainings out of it as long as the lock lives.
// Throws UsageError if one is there already.
FolderLock LockOutFolder(const std::string& folder);

// Throws UsageError for a folder that cannot be resumed or, without `resume`, has something in it.
// What a process that was killed while it wrote its settings has left does not count.
void CheckRunFolder(const std::string& folder, bool resume);

// Removes what such a process has left.
void RemoveUnfinishedSettings(const std::string& folder);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_OUT_FOLDER_H_
