// Presets and config.toml: settings of every kind, in TOML.
#include "tests/campaign/bytes/parser.h"
#include "tools/program/settings.h"

namespace late_phase {
namespace {

struct Values {
  int64_t batch = 32;
  double rate = 1e-3, decay = 0;
  bool shuffle = true;
  std::string model = "base", note = "none";
  std::vector<int64_t> epochs = {1};
};

SettingList List(Values* values) {
  return {Integer("batch", "sequences", 1, 4096, &values->batch),
          Positive("rate", "of learning", &values->rate),
          NotNegative("decay", "of weights", &values->decay),
          Boolean("shuffle", "or not", &values->shuffle),
          Formerly("network", {{"plain", "base"}},
                   Choice("model", "which", {"base", "late-phase"}, &values->model)),
          Text("note", "anything", &values->note),
          AscendingIntegers("epochs", "when", 0, kMany, &values->epochs)};
}

}  // namespace

std::vector<std::string> GoodInputs() {
  Values values;
  return {ConfigText(List(&values)),
          "# all of it\nbatch = 4096\nrate = 4e-3\ndecay = 0.0\nshuffle = false\nmodel = "
          "\"late-phase\"\nnote = \"a \\\"b\\\" \\u00e9\"\nepochs = [1, 2, 30]\n",
          "network = 'plain'\nnote = '''\nlines'''\nepochs = [\n  7,\n]\n"};
}

void Parse(const std::string& bytes) {
  const std::string path = "mine.toml";
  Values values, again;
  try {
    ReadSettingsText(bytes, path, "enwik8", List(&values));
  } catch (const UsageError& error) {
    MustName(error.what(), path);
    ++outcomes.refused;
    return;
  }
  ++outcomes.accepted;
  Must(values.batch >= 1 && values.batch <= 4096 && values.rate > 0 && values.decay >= 0,
       "numbers are in their ranges");
  const std::string text = ConfigText(List(&values));
  ReadSettingsText(text, path, "enwik8", List(&again));
  Must(ConfigText(List(&again)) == text, "what is written reads back as it was: " + text);
}

}  // namespace late_phase
