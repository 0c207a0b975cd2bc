#include "tools/program/command_line.h"

#include <cstdio>
#include <cstdlib>

#include "CLI/CLI.hpp"

namespace late_phase {

void ParseCommandLine(int argc, char** argv, CLI::App* app) {
  // A flag that is given twice counts as it was given last, so that one can be added to a command.
  for (CLI::Option* option : app->get_options()) {
    if (option->get_expected_max() == 1) option->take_last();
  }
  try {
    app->parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app->help().c_str(), stdout);
    std::exit(0);
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string(error.what()) + "\nRun " + app->get_name() +
                     " --help for the flags.");
  }
}

int RunProgram(const std::string& command, const std::function<int()>& work) {
  try {
    return work();
  } catch (const UsageError& error) {
    std::fprintf(stderr, "%s: %s\n", command.c_str(), error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", command.c_str(), error.what());
    return 1;
  }
}

}  // namespace late_phase
