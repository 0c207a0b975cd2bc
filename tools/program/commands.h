// The commands of the program. Each returns an exit status.
#ifndef LATE_PHASE_TOOLS_PROGRAM_COMMANDS_H_
#define LATE_PHASE_TOOLS_PROGRAM_COMMANDS_H_

namespace late_phase {

// argv[0] is the command's name; its own arguments follow.
int TrainCommand(int argc, char** argv);  // PROGRAM [FLAG]...
int EvalCommand(int argc, char** argv);
int SampleCommand(int argc, char** argv);
int NqpCommand(int argc, char** argv);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_COMMANDS_H_
