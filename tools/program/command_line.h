// What all commands share: the command line, user errors and exit statuses. For flags made from
// settings see tools/program/settings.h.
#ifndef LATE_PHASE_TOOLS_PROGRAM_COMMAND_LINE_H_
#define LATE_PHASE_TOOLS_PROGRAM_COMMAND_LINE_H_

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace late_phase {

// A mistake made by the user: exit status 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Makes ParseCommandLine print the command's description and flags as JSON, and exit.
void OnlyListFlags();

// Reads the command line into `app`, whose name is the command as typed; the first argument is its
// name, too. For --help, prints the help and exits; throws UsageError for anything unknown.
void ParseCommandLine(const std::vector<std::string>& arguments, CLI::App* app);
void ParseCommandLine(int argc, char** argv, CLI::App* app);

// Runs `work` and returns the status to exit with: its own, 2 for UsageError, 1 for any other
// exception, whose text goes to standard error after the command's name.
int RunProgram(const std::string& command, const std::function<int()>& work);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_COMMAND_LINE_H_
