#include "tools/program/command_line.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "CLI/CLI.hpp"

namespace late_phase {
namespace {

bool only_list_flags = false;

// "--split test validation"; CLI11 puts the words of a choice in braces after the type's name.
void ListFlags(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() || option->get_group().empty()) continue;
    std::string line = "--" + option->get_lnames()[0];
    const std::string type = option->get_type_name();
    const size_t begin = type.find('{'), end = type.find('}');
    if (begin != std::string::npos && end != std::string::npos) {
      line += " " + type.substr(begin + 1, end - begin - 1);
      std::replace(line.begin(), line.end(), ',', ' ');
    }
    std::puts(line.c_str());
  }
}

}  // namespace

void OnlyListFlags() { only_list_flags = true; }

void ParseCommandLine(int argc, char** argv, CLI::App* app) {
  ParseCommandLine(std::vector<std::string>(argv, argv + argc), app);
}

void ParseCommandLine(const std::vector<std::string>& arguments, CLI::App* app) {
  // If a flag is given twice the last one counts, so that flags can be appended to a command.
  for (CLI::Option* option : app->get_options()) {
    if (option->get_expected_max() == 1) option->take_last();
  }
  if (only_list_flags) {
    ListFlags(*app);
    std::exit(0);
  }
  try {
    // CLI11 takes them from the back.
    app->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend() - 1));
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
