// The program that the driver (python/late_phase_cli) runs: one binary for all commands, because
// linking TensorFlow is what takes time and space.
#include <unistd.h>

#include <cstdio>
#include <map>
#include <string>

#include "tools/program/command_line.h"
#include "tools/program/commands.h"
#include "tools/program/driver.h"
#include "tools/program/interrupt.h"

int main(int argc, char** argv) {
  using late_phase::CommandName;
  // `flags COMMAND...` describes the flags of a command (python/late_phase_cli/flags.json).
  if (argc > 1 && std::string(argv[1]) == "flags") {
    late_phase::OnlyListFlags();
    --argc, ++argv;
  }
  const std::string command = argc > 1 ? argv[1] : "";
  late_phase::EndOnSignals(CommandName(command));
  late_phase::EndWithDriver();
  // TensorFlow's libraries print notes while they are being loaded, before any of our code could
  // stop them. The driver redirects those and tells us here where the terminal is.
  const int terminal = late_phase::DriversDescriptor("LATE_PHASE_STDERR");
  if (terminal >= 0) dup2(terminal, STDERR_FILENO);
  const std::map<std::string, int (*)(int, char**)> commands = {
      {"train", late_phase::TrainCommand},
      {"eval", late_phase::EvalCommand},
      {"sample", late_phase::SampleCommand},
      {"nqp", late_phase::NqpCommand},
  };
  if (const auto found = commands.find(command); found != commands.end()) {
    return found->second(argc - 1, argv + 1);
  }
  std::fprintf(stderr, "the command must be train, eval, sample or nqp. Received: %s\n",
               command.c_str());
  return 2;
}
