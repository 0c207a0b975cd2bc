// The commands of tools/latephase that are in the program tools:train. Each returns an exit status.
#ifndef LATE_PHASE_TOOLS_COMMANDS_H_
#define LATE_PHASE_TOOLS_COMMANDS_H_

namespace late_phase {

// argv[0] is the program, the command's own arguments follow.
int TrainEnwik8(int argc, char** argv);  // train enwik8
int Evaluate(int argc, char** argv);     // eval
int Sample(int argc, char** argv);       // sample

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_COMMANDS_H_
