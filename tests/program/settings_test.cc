// Settings of programs: rules, messages, presets, flags, config.toml; and the files they are in.
#include "tools/program/settings.h"

#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "gtest/gtest.h"
#include "tools/program/files.h"
#include "tools/program/out_folder.h"

namespace late_phase {
namespace {

// One setting of every kind.
struct Values {
  int64_t seeds = 1;
  double lr = 0.5;
  bool carry = false;
  std::string rule = "adam", data = "here";
  std::vector<int64_t> members = {1};

  SettingList All() {
    return {Integer("seeds", "runs", 1, 100, &seeds),
            Real(
                "base_lr", "learning rate", "a number > 0", [](double x) { return x > 0; }, &lr),
            Boolean("carry", "keep the state", &carry),
            Choice("rule", "of the update", {"sgd", "adam"}, &rule),
            Text("data", "folder", &data),
            AscendingIntegers("members", "numbers of members", 1, 9, &members)};
  }
};

// What `call` complains about, "" if nothing.
template <typename Call>
std::string Complaint(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

class SettingsTest : public testing::Test {
 protected:
  SettingsTest() : folder_(testing::TempDir() + "/settings_test") {
    std::filesystem::create_directories(folder_);
    setenv("LATE_PHASE_PRESETS", folder_.c_str(), 1);
  }
  ~SettingsTest() override { std::filesystem::remove_all(folder_); }

  std::string File(const std::string& name, const std::string& text) {
    WriteFile(folder_ + "/" + name, text);
    return folder_ + "/" + name;
  }
  void Parse(std::vector<const char*> arguments, CLI::App* app) {
    arguments.insert(arguments.begin(), "program");
    ParseCommandLine(static_cast<int>(arguments.size()), const_cast<char**>(arguments.data()), app);
  }

  const std::string folder_;
  Values values_;
  const SettingList settings_ = values_.All();
};

TEST_F(SettingsTest, RefusedTextsNameTheRuleAndLeaveTheValue) {
  const std::vector<std::vector<std::string>> refused = {
      {"an integer in [1, 100]", "0", "101", "1.0", "x", "", "1 ", "99999999999999999999"},
      {"a number > 0", "0", "nan", "inf", "1e999", "fast", ""},
      {"true or false", "1", "True", ""},
      {"one of sgd, adam", "adamw", "Adam", ""},
      {"text in UTF-8", "\xff", "a\xc3"},
      {"ascending integers in [1, 9], separated by commas", "", "1,", ",1", "2,1", "1,1", "10"},
  };
  const std::string before = ConfigText(settings_);
  for (size_t i = 0; i < settings_.size(); ++i) {
    for (size_t j = 1; j < refused[i].size(); ++j) {
      const std::string name = settings_[i].name, &text = refused[i][j];
      EXPECT_EQ(Complaint([&] { Assign(settings_[i], text, " in there"); }),
                "`" + name + "` must be " + refused[i][0] + ". Received: " + name + "=" + text +
                    " in there");
    }
  }
  EXPECT_EQ(ConfigText(settings_), before);
}

TEST_F(SettingsTest, LimitsAreWithin) {
  Assign(settings_[0], "100");
  EXPECT_EQ(values_.seeds, 100);
  Assign(settings_[0], "1");
  EXPECT_EQ(values_.seeds, 1);
}

TEST_F(SettingsTest, ConfigReadsBackAsItWas) {
  for (const double lr : {1.0, 4e-5, 0.1, 1.0 / 3, 1e22, 5e-324, 1.7976931348623157e308}) {
    for (const std::string data : {"", "a \"b\" \\c", "line\nand\ttab\x7f", "\u00e4\u03b8"}) {
      values_ = {7, lr, true, "sgd", data, {1, 2, 5}};
      Values read;
      ReadSettings(File("config.toml", ConfigText(settings_)), "train", read.All());
      EXPECT_EQ(read.seeds, 7);
      EXPECT_EQ(read.lr, lr);
      EXPECT_TRUE(read.carry);
      EXPECT_EQ(read.rule, "sgd");
      EXPECT_EQ(read.data, data);
      EXPECT_EQ(read.members, values_.members);
      EXPECT_EQ(ConfigText(read.All()), ConfigText(settings_));
    }
  }
}

TEST_F(SettingsTest, ConfigIsOneLineEach) {
  values_ = {7, 1, true, "sgd", "a\nb", {1, 2}};
  EXPECT_EQ(ConfigText(settings_),
            "seeds = 7\nbase_lr = 1.0\ncarry = true\nrule = \"sgd\"\ndata = \"a\\u000ab\"\n"
            "members = [1, 2]\n");
}

TEST_F(SettingsTest, RealTextIsShort) {
  EXPECT_EQ(RealText(0.1), "0.1");
  EXPECT_EQ(RealText(2), "2.0");
  EXPECT_EQ(RealText(4e-5), "4e-05");
  EXPECT_EQ(RealText(-std::numeric_limits<double>::infinity()), "-inf");
}

TEST_F(SettingsTest, UnknownKeyIsNamedWithItsFileAndWhatMayBeMeant) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"sedes", "; did you mean seeds?"},                                    // neighbours swapped
      {"base-lr", "; did you mean base_lr?"},                                // as the flag has it
      {"cary", "; did you mean carry?"},      {"momentum", ""}, {"dt", ""},  // too short to be data
  };
  for (const auto& [key, suggestion] : cases) {
    const std::string path = File("mine.toml", key + " = 3\n");
    EXPECT_EQ(
        Complaint([&] { ReadSettings(path, "train", settings_); }),
        "a preset must hold settings of train only. Received: " + key + " in " + path + suggestion);
  }
}

TEST_F(SettingsTest, FilesMayHaveWhatASettingWasCalledBefore) {
  std::string rule = "adam";
  const SettingList settings = {Formerly("plain", {{"true", "sgd"}, {"false", "adam"}},
                                         Choice("rule", "of the update", {"sgd", "adam"}, &rule))};
  auto read = [&](const std::string& text) {
    const std::string path = File("config.toml", text);
    return Complaint([&] { ReadSettings(path, "train", settings); });
  };
  EXPECT_EQ(read("plain = true\n"), "");
  EXPECT_EQ(rule, "sgd");
  EXPECT_EQ(read("plain = false\n"), "");
  EXPECT_EQ(rule, "adam");
  EXPECT_EQ(ConfigText(settings), "rule = \"adam\"\n");
  const std::string path = folder_ + "/config.toml";
  EXPECT_EQ(read("plain = 3\n"),
            "`plain`, now called rule, must be one of false, true. Received: plain=3 in " + path);
  EXPECT_EQ(
      read("rule = \"sgd\"\nplain = false\n"),
      "`plain` is now called rule, and one of them must be left out. Received: both in " + path);
  CLI::App app;
  AddFlags(settings, &app);
  EXPECT_EQ(app.get_option_no_throw("--plain"), nullptr);
}

TEST_F(SettingsTest, BadFilesAreRefused) {
  std::string path = File("mine.toml", "seeds = 3\nbase_lr = [");
  const std::string complaint = Complaint([&] { ReadSettings(path, "train", settings_); });
  EXPECT_EQ(complaint.find("the settings of train must be a TOML file: line 2: "), 0) << complaint;
  EXPECT_NE(complaint.find(". Received: " + path), std::string::npos) << complaint;
  EXPECT_EQ(values_.seeds, 1);
  const std::vector<std::pair<std::string, std::string>> kinds = {
      {"seeds = true", "seeds=true"},      {"seeds = 1.5", "seeds=1.5"},
      {"seeds = inf", "seeds=inf"},        {"seeds = 2020-01-01", "seeds=2020-01-01"},
      {"[seeds]\nx = 1", "seeds="},        {"members = []", "members="},
      {"members = [1, 1]", "members=1,1"},
  };
  for (const auto& [text, received] : kinds) {
    path = File("mine.toml", text);
    EXPECT_NE(
        Complaint([&] { ReadSettings(path, "train", settings_); }).find("Received: " + received),
        std::string::npos)
        << Complaint([&] { ReadSettings(path, "train", settings_); });
  }
  EXPECT_EQ(Complaint([&] { ReadSettings(folder_ + "/none.toml", "train", settings_); }),
            "cannot read " + folder_ + "/none.toml: No such file or directory");
  EXPECT_EQ(Complaint([&] { ReadSettings(folder_, "train", settings_); }),
            "cannot read " + folder_ + ": Is a directory");
}

TEST_F(SettingsTest, PresetsAreFoundByNameOrPath) {
  File("train-quick.toml", "seeds = 2");
  File("train-paper.toml", "seeds = 3");
  File("train-aside.toml", "");
  File("nqp-other.toml", "");
  const std::string path = File("mine.toml", "seeds = 4");
  ReadPreset("train", "paper", settings_);
  EXPECT_EQ(values_.seeds, 3);
  ReadPreset("train", path, settings_);
  EXPECT_EQ(values_.seeds, 4);
  EXPECT_EQ(Complaint([&] { ReadPreset("train", "slow", settings_); }),
            "`preset` must be quick, aside, paper, or a .toml file. Received: preset=slow");
  EXPECT_EQ(Complaint([&] { ReadPreset("eval", "none.toml", settings_); }),
            "`preset` must be a .toml file. Received: preset=none.toml");
}

TEST_F(SettingsTest, OneValueIsReadFromAFileOfOthers) {
  const std::string path = File("config.toml", "program = \"train\"\nseeds = 4");
  EXPECT_EQ(ReadValue(path, "program"), "train");
  EXPECT_EQ(ReadValue(path, "seeds"), "4");
  EXPECT_EQ(Complaint([&] { ReadValue(path, "model"); }),
            "`model` must be set. Received: " + path + " without it");
}

TEST_F(SettingsTest, FlagsOverridePresets) {
  File("train-quick.toml", "seeds = 2\nbase_lr = 3");
  CLI::App app("", "tools/latephase train");
  AddFlags(settings_, &app);
  Parse({"--base-lr", "0.25", "--members=1,3", "--data", ""}, &app);
  ReadPreset("train", "quick", settings_);
  ApplyFlags(settings_, app);
  EXPECT_EQ(values_.seeds, 2);
  EXPECT_EQ(values_.lr, 0.25);
  EXPECT_EQ(values_.members, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(values_.data, "");
}

TEST_F(SettingsTest, TheLastOfAFlagCounts) {
  CLI::App app("", "tools/latephase train");
  AddFlags(settings_, &app);
  Parse({"--seeds", "1", "--seeds", "2"}, &app);
  ApplyFlags(settings_, app);
  EXPECT_EQ(values_.seeds, 2);
}

TEST_F(SettingsTest, BadFlagsAreRefused) {
  const std::vector<std::pair<std::vector<const char*>, std::string>> cases = {
      {{"--fly", "1"}, "--fly"}, {{"--seeds"}, "--seeds"}};
  for (const auto& [arguments, part] : cases) {
    CLI::App app("", "tools/latephase train");
    AddFlags(settings_, &app);
    const std::string complaint =
        Complaint([&, &arguments = arguments] { Parse(arguments, &app); });
    EXPECT_NE(complaint.find(part), std::string::npos) << complaint;
    EXPECT_NE(complaint.find("Run tools/latephase train --help"), std::string::npos) << complaint;
  }
  CLI::App app("", "tools/latephase train");
  AddFlags(settings_, &app);
  Parse({"--seeds", "0"}, &app);
  EXPECT_EQ(Complaint([&] { ApplyFlags(settings_, app); }),
            "`seeds` must be an integer in [1, 100]. Received: seeds=0");
  EXPECT_NE(app.help().find("runs; an integer in [1, 100]"), std::string::npos) << app.help();
}

TEST_F(SettingsTest, FilesAreWrittenWholeOrNotAtAll) {
  const std::string path = File("result.json", "first");
  std::string text(1 << 20, 'x');
  text[3] = 0;
  WriteFile(path, text);
  EXPECT_EQ(ReadFile(path), text);
  std::filesystem::create_directory(folder_ + "/taken");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {folder_ + "/none/file", "No such file or directory"},
      {folder_ + "/taken", "Is a directory"}};
  for (const auto& [bad, reason] : cases) {
    try {
      WriteFile(bad, "text");
      ADD_FAILURE() << bad;
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "cannot write " + bad + ": " + reason);
    }
  }
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) files += entry.exists();
  EXPECT_EQ(files, 2) << "something was left aside";
}

TEST_F(SettingsTest, OutFolderIsMadeOrRefused) {
  MakeOutFolder(folder_ + "/a/b");
  EXPECT_TRUE(std::filesystem::is_directory(folder_ + "/a/b"));
  const std::string file = File("file", "");
  EXPECT_EQ(Complaint([&] { MakeOutFolder(file); }),
            "`out` must be a folder that can be created and written to. Received: out=" + file);
}

TEST_F(SettingsTest, OutFolderIsForOneTraining) {
  const std::string folder = folder_ + "/run";
  {
    const FolderLock lock = LockOutFolder(folder);
    EXPECT_EQ(Complaint([&] { LockOutFolder(folder); }),
              "`out` must not be in use by another process. Received: out=" + folder +
                  ", in which one is training");
  }
  LockOutFolder(folder);
}

TEST(Program, ExitStatusTellsTheUsersMistakesFromOthers) {
  EXPECT_EQ(RunProgram("p", [] { return 5; }), 5);
  testing::internal::CaptureStderr();
  EXPECT_EQ(RunProgram("p", []() -> int { throw UsageError("wrong flag"); }), 2);
  EXPECT_EQ(RunProgram("p", []() -> int { throw std::runtime_error("disk full"); }), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "p: wrong flag\np: disk full\n");
}

}  // namespace
}  // namespace late_phase
