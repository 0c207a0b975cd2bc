#include "tools/program/command_line.h"

#include <cstdio>
#include <cstdlib>

#include "CLI/CLI.hpp"
#include "nlohmann/json.hpp"

namespace late_phase {
namespace {

using Json = nlohmann::ordered_json;

bool only_list_flags = false;

// The words of a choice, which CLI11 puts in braces after the type's name.
std::vector<std::string> Words(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return {};
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

// python/late_phase_cli/program_flags.py reads it.
Json ListFlags(const CLI::App& app) {
  Json flags = Json::array();
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    const bool positional = option->get_lnames().empty();
    Json flag = {{"name", positional ? option->get_name() : "--" + option->get_lnames()[0]},
                 {"help", option->get_description()}};
    if (option->get_expected_max() == 0) flag["switch"] = true;
    if (option->get_expected_max() > 1) flag["several"] = true;
    if (const std::vector<std::string> words = Words(*option); !words.empty()) {
      flag["words"] = words;
    }
    if (!option->get_default_str().empty()) flag["default"] = option->get_default_str();
    flags.push_back(flag);
  }
  return {{"description", app.get_description()}, {"flags", flags}};
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
    std::puts(ListFlags(*app).dump(1).c_str());
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
