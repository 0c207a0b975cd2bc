#include "tools/program/settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <utility>

// Where NDEBUG is not defined, the library asserts what it reports as an error of the file a few
// lines later, such as that a key follows a bracket.
#define TOML_ASSERT(condition) static_assert(true)

#include "CLI/CLI.hpp"
#include "toml++/toml.h"
#include "tools/program/files.h"

namespace late_phase {
namespace {

template <typename T>
bool ParseNumber(const std::string& text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

std::string Range(int64_t least, int64_t most) {
  return "[" + std::to_string(least) + ", " + std::to_string(most) + "]";
}

std::string Join(const std::vector<std::string>& items, const std::string& between = ", ") {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : between) + item;
  return text;
}

// As a TOML string on one line.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    char escape[8];
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(c));
      quoted += escape;
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

// A value of the file as a flag would give it.
std::string TomlText(const toml::node& node) {
  if (const auto* value = node.as_integer()) return std::to_string(value->get());
  if (const auto* value = node.as_floating_point()) return RealText(value->get());
  if (const auto* value = node.as_string()) return value->get();
  std::ostringstream text;
  if (const auto* values = node.as_array()) {
    for (const toml::node& value : *values) {
      text << (&value == values->get(0) ? "" : ",") << TomlText(value);
    }
  } else {
    node.visit([&](const auto& value) { text << value; });  // booleans; others are refused later
  }
  return text.str();
}

// The edit distance: letters to insert, remove, replace or swap with a neighbour.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

// "; did you mean ...?" if a setting is less than three edits away and most of the name agrees.
std::string Suggestion(const std::string& name, const SettingList& settings) {
  size_t least = 3;
  std::string text;
  for (const Setting& setting : settings) {
    const size_t distance = EditDistance(name, setting.name);
    if (distance < least && 2 * distance < name.size()) {
      least = distance;
      text = "; did you mean " + setting.name + "?";
    }
  }
  return text;
}

// `whose` settings they are, for messages.
toml::table ParseTable(const std::string& text, const std::string& path, const std::string& whose) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw UsageError("the settings of " + whose + " must be a TOML file: line " +
                     std::to_string(error.source().begin.line) + ": " +
                     std::string(error.description()) + ". Received: " + path);
  }
}

std::string ReadTomlFile(const std::string& path) {
  try {
    return ReadFile(path);
  } catch (const std::exception& error) {
    throw UsageError(error.what());
  }
}

toml::table ReadTable(const std::string& path, const std::string& whose) {
  return ParseTable(ReadTomlFile(path), path, whose);
}

// `both`: the file has its name of today, too.
void AssignFormer(const Setting& setting, const std::string& text, bool both,
                  const std::string& from) {
  const Setting::Former& former = setting.former;
  if (both) {
    throw UsageError("`" + former.name + "` is now called " + setting.name +
                     ", and one of them must be left out. Received: both" + from);
  }
  const auto value = former.values.find(text);
  if (value != former.values.end()) return Assign(setting, value->second, from);
  std::vector<std::string> words;
  for (const auto& [word, meaning] : former.values) words.push_back(word);
  throw UsageError("`" + former.name + "`, now called " + setting.name + ", must be one of " +
                   Join(words) + ". Received: " + former.name + "=" + text + from);
}

std::string PresetFolder() {
  const char* folder = std::getenv("LATE_PHASE_PRESETS");
  return folder ? folder : "models/presets";
}

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() > end.size() && text.substr(text.size() - end.size()) == end;
}

std::string FlagName(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return "--" + name;
}

}  // namespace

std::string RealText(double value) {
  char text[32];
  for (int digits = 1; digits <= 17; ++digits) {
    std::snprintf(text, sizeof(text), "%.*g", digits, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  const bool is_float =
      !std::isfinite(value) || std::string(text).find_first_of(".e") != std::string::npos;
  return is_float ? text : std::string(text) + ".0";
}

Setting Integer(std::string name, std::string help, int64_t least, int64_t most, int64_t* value) {
  return {std::move(name), std::move(help), "an integer in " + Range(least, most),
          [=](const std::string& text) {
            int64_t parsed;
            if (!ParseNumber(text, &parsed) || parsed < least || parsed > most) return false;
            *value = parsed;
            return true;
          },
          [=] { return std::to_string(*value); }};
}

Setting Real(std::string name, std::string help, std::string rule,
             std::function<bool(double)> holds, double* value) {
  return {std::move(name), std::move(help), std::move(rule),
          [value, holds = std::move(holds)](const std::string& text) {
            double parsed;
            if (!ParseNumber(text, &parsed) || !std::isfinite(parsed) || !holds(parsed)) {
              return false;
            }
            *value = parsed;
            return true;
          },
          [=] { return RealText(*value); }};
}

Setting Positive(std::string name, std::string help, double* value) {
  return Real(
      std::move(name), std::move(help), "a number > 0", [](double x) { return x > 0; }, value);
}

Setting NotNegative(std::string name, std::string help, double* value) {
  return Real(
      std::move(name), std::move(help), "a number >= 0", [](double x) { return x >= 0; }, value);
}

Setting Boolean(std::string name, std::string help, bool* value) {
  return {std::move(name),
          std::move(help),
          "true or false",
          [=](const std::string& text) {
            if (text != "true" && text != "false") return false;
            *value = text == "true";
            return true;
          },
          [=] { return *value ? "true" : "false"; },
          {"true", "false"}};
}

Setting Choice(std::string name, std::string help, std::vector<std::string> words,
               std::string* value) {
  std::string rule = "one of " + Join(words);
  return {std::move(name),
          std::move(help),
          std::move(rule),
          [=](const std::string& text) {
            if (std::find(words.begin(), words.end(), text) == words.end()) return false;
            *value = text;
            return true;
          },
          [=] { return Quoted(*value); },
          std::move(words)};
}

Setting Text(std::string name, std::string help, std::string* value) {
  return {std::move(name), std::move(help), "text in UTF-8",
          [=](const std::string& text) {
            try {  // refuse what could not be read back
              const toml::table read = toml::parse("text = " + Quoted(text));
              if (read["text"].value<std::string>() != text) return false;
            } catch (const toml::parse_error&) {
              return false;
            }
            *value = text;
            return true;
          },
          [=] { return Quoted(*value); }};
}

Setting AscendingIntegers(std::string name, std::string help, int64_t least, int64_t most,
                          std::vector<int64_t>* values) {
  return {std::move(name), std::move(help),
          "ascending integers in " + Range(least, most) + ", separated by commas",
          [=](const std::string& text) {
            std::vector<int64_t> parsed;
            std::stringstream parts(text);
            for (std::string part; std::getline(parts, part, ',');) {
              int64_t number;
              if (!ParseNumber(part, &number) || number < least || number > most) return false;
              if (!parsed.empty() && number <= parsed.back()) return false;
              parsed.push_back(number);
            }
            if (parsed.empty() || text.back() == ',') return false;
            *values = parsed;
            return true;
          },
          [=] {
            std::vector<std::string> items;
            for (const int64_t number : *values) items.push_back(std::to_string(number));
            return "[" + Join(items) + "]";
          }};
}

Setting Formerly(std::string name, std::map<std::string, std::string> values, Setting setting) {
  setting.former = {std::move(name), std::move(values)};
  return setting;
}

void Assign(const Setting& setting, const std::string& text, const std::string& from) {
  if (setting.set(text)) return;
  throw UsageError("`" + setting.name + "` must be " + setting.rule +
                   ". Received: " + setting.name + "=" + text + from);
}

void ReadSettings(const std::string& path, const std::string& program,
                  const SettingList& settings) {
  ReadSettingsText(ReadTomlFile(path), path, program, settings);
}

void ReadSettingsText(const std::string& text, const std::string& path, const std::string& program,
                      const SettingList& settings) {
  const toml::table table = ParseTable(text, path, program);
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    const auto setting = std::find_if(settings.begin(), settings.end(), [&](const Setting& s) {
      return s.name == name || (!s.former.name.empty() && s.former.name == name);
    });
    if (setting != settings.end() && setting->name != name) {
      AssignFormer(*setting, TomlText(node), table.contains(setting->name), " in " + path);
      continue;
    }
    if (setting == settings.end()) {
      throw UsageError("a preset must hold settings of " + program + " only. Received: " + name +
                       " in " + path + Suggestion(name, settings));
    }
    Assign(*setting, TomlText(node), " in " + path);
  }
}

std::string ReadValue(const std::string& path, const std::string& name) {
  const toml::table table = ReadTable(path, "a run");
  const toml::node* node = table.get(name);
  if (!node) throw UsageError("`" + name + "` must be set. Received: " + path + " without it");
  return TomlText(*node);
}

std::vector<std::string> PresetNames(const std::string& program) {
  const std::string begin = program + "-", end = ".toml";
  std::vector<std::string> names;
  std::error_code error;  // a missing folder has none
  for (const auto& entry : std::filesystem::directory_iterator(PresetFolder(), error)) {
    const std::string file = entry.path().filename().string();
    if (file.rfind(begin, 0) == 0 && EndsWith(file, end) &&
        file.size() > begin.size() + end.size()) {
      names.push_back(file.substr(begin.size(), file.size() - begin.size() - end.size()));
    }
  }
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return std::pair(a != "quick", a) < std::pair(b != "quick", b);
  });
  return names;
}

std::string PresetRule(const std::string& program) {
  const std::vector<std::string> names = PresetNames(program);
  return names.empty() ? "a .toml file" : Join(names) + ", or a .toml file";
}

void ReadPreset(const std::string& program, const std::string& name, const SettingList& settings) {
  const bool is_path = EndsWith(name, ".toml");
  const std::string path = is_path ? name : PresetFolder() + "/" + program + "-" + name + ".toml";
  if (!std::filesystem::exists(path)) {
    throw UsageError("`preset` must be " + PresetRule(program) + ". Received: preset=" + name);
  }
  ReadSettings(path, program, settings);
}

void AddPresetFlag(const std::string& program, std::string* preset, CLI::App* app) {
  app->add_option("--preset", *preset,
                  "one of these, or a .toml file; its values are the defaults of the other flags")
      ->type_name("{" + Join(PresetNames(program), ",") + "}")
      ->capture_default_str();
}

void AddFlags(const SettingList& settings, CLI::App* app) {
  for (const Setting& setting : settings) {
    const bool choice = !setting.words.empty();
    app->add_option(FlagName(setting.name))
        ->description(choice ? setting.help : setting.help + "; " + setting.rule)
        ->type_name(choice ? "{" + Join(setting.words, ",") + "}" : "TEXT");
  }
}

void ApplyFlags(const SettingList& settings, const CLI::App& app) {
  for (const Setting& setting : settings) {
    const CLI::Option* option = app.get_option(FlagName(setting.name));
    if (option->count() > 0) Assign(setting, option->results().back());
  }
}

std::string ConfigText(const SettingList& settings) {
  std::string text;
  for (const Setting& setting : settings) text += setting.name + " = " + setting.get() + "\n";
  return text;
}

}  // namespace late_phase
