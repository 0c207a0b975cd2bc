// The conversation with the driver, the Python package late_phase_cli, which runs this program as a
// child: what the program asks and reports. This comment is the protocol; the other end is
// python/late_phase_cli/program.py.
//
// The environment's LATE_PHASE_DRIVER is the number of a file descriptor, one end of a stream
// socket. Both sides write JSON objects, one per line. Without the variable there is no driver:
// nothing is reported, and what would be asked for must be given by flags.
//
// The program asks, and waits for the answer, {"path": PATH} or {"error": TEXT}:
//
//   {"needs": "enwik8", "data": PATH or null}           the checked text; --data as given
//   {"needs": "corruptions", "run": DIR, "data": PATH or null, "images": N}
//                                                       corrupted test images of a run's data set
//
// The program reports, and continues:
//
//   {"finished": PROGRAM or "eval", "folder": DIR}      all of its results are in the folder
//   {"plan": {"folder": DIR, "parallel": N, "threads": N, "runs": [RUN], "collect": [ARGUMENT],
//             "resume": TEXT}}
//       The command stands for several runs, `parallel` of which are to be trained at a time. The
//       program has checked them and written what they share; it ends, and the driver starts it
//       again for each RUN: {"name", "model", "seed", "folder", "fork_from": DIR or null,
//       "finished": BOOL, "ready": BOOL, "arguments": [ARGUMENT]}. One that is not ready starts
//       once the run in `fork_from` has forked or finished. "collect" are the arguments of the last
//       start, which writes the results of all; "resume" is the command that resumes the plan.
//   {"local_workers": {"count": N, "folder": DIR, "threads": N}}
//       The command is to be started N times at once, as so many workers on this machine: with its
//       own arguments, and --threads, --workers and --task after them. The program has checked it,
//       and ends.
//   {"forked": DIR}                                     the state to fork from is in DIR/fork
//   {"progress": {"done": SHARE, "text": TEXT}}         how far a training is, once in a while
#ifndef LATE_PHASE_TOOLS_PROGRAM_DRIVER_H_
#define LATE_PHASE_TOOLS_PROGRAM_DRIVER_H_

#include <string>

#include "nlohmann/json.hpp"

namespace late_phase {

// Call this first in main: if the driver is killed, the program receives SIGTERM, and ends as
// after any SIGTERM.
void EndWithDriver();

bool HasDriver();

// The file descriptor whose number the driver put into an environment variable; -1 if there is
// none.
int DriversDescriptor(const char* variable);

// Does nothing without a driver, or if it is gone.
void TellDriver(const nlohmann::ordered_json& message);

// The path that the driver answers with. Throws UsageError with its error message. REQUIRES:
// HasDriver().
std::string AskDriver(const nlohmann::ordered_json& need);

// A command as the user types it: "tools/latephase train", or with the driver's name from the
// environment's LATE_PHASE_COMMAND.
std::string CommandName(const std::string& command);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_DRIVER_H_
