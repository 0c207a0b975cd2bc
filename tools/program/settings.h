// The values of a run. They are read as text, from a preset, a flag or another run's config.toml,
// and written as text to config.toml. A program lists them once; ranges, messages, flags and files
// follow from the list.
//
//   Options options;
//   const SettingList settings = {Integer("batch", "sequences at a time", 1, 4096,
//   &options.batch)}; AddFlags(settings, &app); ParseCommandLine(argc, argv, &app);
//   ReadPreset("train", "quick", settings);  // then the flags, which win
//   ApplyFlags(settings, app);
#ifndef LATE_PHASE_TOOLS_PROGRAM_SETTINGS_H_
#define LATE_PHASE_TOOLS_PROGRAM_SETTINGS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tools/program/command_line.h"

namespace late_phase {

struct Setting {
  std::string name, help;
  std::string rule;                             // what the value must be, for messages
  std::function<bool(const std::string&)> set;  // false: the rule was broken, and nothing was set
  std::function<std::string()> get;             // as TOML
  std::vector<std::string> words = {};          // if the value must be one of these
  // Its name in an older version, and the values there -> here. Files that still have it are read;
  // nothing writes it.
  struct Former {
    std::string name;
    std::map<std::string, std::string> values;
  };
  Former former = {};
};
using SettingList = std::vector<Setting>;

constexpr int64_t kMany = 1000000000000;  // the limit for what has no limit of its own

// Settings of each kind; the value must outlive them.
Setting Integer(std::string name, std::string help, int64_t least, int64_t most, int64_t* value);
Setting Real(std::string name, std::string help, std::string rule,
             std::function<bool(double)> holds, double* value);
Setting Positive(std::string name, std::string help, double* value);     // a number > 0
Setting NotNegative(std::string name, std::string help, double* value);  // a number >= 0
Setting Boolean(std::string name, std::string help, bool* value);
Setting Choice(std::string name, std::string help, std::vector<std::string> words,
               std::string* value);
Setting Text(std::string name, std::string help, std::string* value);
// An ascending list of at least one integer: [1, 2] in TOML, 1,2 as a flag.
Setting AscendingIntegers(std::string name, std::string help, int64_t least, int64_t most,
                          std::vector<int64_t>* values);

// The setting, which had another name in an older version.
Setting Formerly(std::string name, std::map<std::string, std::string> values, Setting setting);

// The shortest text that reads back as the value, with a point or an exponent, as TOML requires.
std::string RealText(double value);

// Sets the value; throws UsageError with the rule and the text if it breaks the rule. `from` ends
// the message, e.g. " in mine.toml".
void Assign(const Setting& setting, const std::string& text, const std::string& from = "");

// Applies the values of a TOML file. Throws UsageError for a name that is not a setting of the
// program, suggesting the one that may have been meant.
void ReadSettings(const std::string& path, const std::string& program, const SettingList& settings);

// The same with the file's text; `path` is named in messages.
void ReadSettingsText(const std::string& text, const std::string& path, const std::string& program,
                      const SettingList& settings);

// One value of the TOML file, as a flag would give it; UsageError if the file lacks it.
std::string ReadValue(const std::string& path, const std::string& name);

// The presets of a program: NAME of each PROGRAM-NAME.toml in the folder LATE_PHASE_PRESETS, by
// default models/presets; "quick" first.
std::vector<std::string> PresetNames(const std::string& program);

// "quick, paper, or a .toml file"
std::string PresetRule(const std::string& program);

// ReadSettings of a preset by its name, or of a path that ends in .toml.
void ReadPreset(const std::string& program, const std::string& name, const SettingList& settings);

// Adds --preset, with `preset` as its default.
void AddPresetFlag(const std::string& program, std::string* preset, CLI::App* app);

// Adds a flag per setting, with dashes for underscores; ApplyFlags assigns those that were given.
void AddFlags(const SettingList& settings, CLI::App* app);
void ApplyFlags(const SettingList& settings, const CLI::App& app);

// One line of TOML per setting; ReadSettings reads it.
std::string ConfigText(const SettingList& settings);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_SETTINGS_H_
