// The commands of tools/latephase that are in the program tools:train. Each returns an exit status.
#ifndef LATE_PHASE_TOOLS_PROGRAM_COMMANDS_H_
#define LATE_PHASE_TOOLS_PROGRAM_COMMANDS_H_

#include <string>

namespace late_phase {

// argv[0] is a name, the command's own arguments follow.
int TrainCommand(const std::string& program, int argc, char** argv);  // train PROGRAM
int EvalCommand(int argc, char** argv);                               // eval
int SampleCommand(int argc, char** argv);                             // sample

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_COMMANDS_H_
