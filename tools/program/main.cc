// The program behind `tools/latephase train | eval | sample`: one binary, because linking
// TensorFlow is what costs.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tools/program/commands.h"
#include "tools/program/interrupt.h"

int main(int argc, char** argv) {
  late_phase::EndOnSignals("tools/latephase " + std::string(argc > 1 ? argv[1] : ""));
  // TensorFlow's libraries print notes while they are being loaded, before any code of ours could
  // stop them. tools/latephase lets those go elsewhere and says here where the terminal is.
  if (const char* terminal = std::getenv("LATE_PHASE_STDERR"))
    dup2(std::atoi(terminal), STDERR_FILENO);
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "train" && argc > 2) {
    return late_phase::TrainCommand(argv[2], argc - 2, argv + 2);
  }
  if (command == "eval") return late_phase::EvalCommand(argc - 1, argv + 1);
  if (command == "sample") return late_phase::SampleCommand(argc - 1, argv + 1);
  std::fprintf(stderr,
               "tools/latephase: the command must be train PROGRAM, eval or sample. Received: %s\n",
               command.c_str());
  return 2;
}
