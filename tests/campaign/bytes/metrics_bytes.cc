// metrics.jsonl, of which a resumed run keeps what still holds.
#include "models/training/metrics_lines.h"
#include "nlohmann/json.hpp"
#include "tests/campaign/bytes/parser.h"

namespace late_phase {

std::vector<std::string> GoodInputs() {
  return {
      "{\"kind\":\"train\",\"step\":3,\"epoch\":0.5,\"loss\":2.5,\"seconds\":1.25}\n"
      "{\"kind\":\"evaluation\",\"step\":5,\"epoch\":1.0,\"split\":\"test\",\"bpc\":2.6}\n"
      "{\"kind\":\"members\",\"step\":9,\"epoch\":2.0,\"member_spread\":0.1}\n",
      "{\"kind\":\"train\",\"step\":4,\"epoch\":0.5,\"seconds\":1e9}\n"
      "{\"kind\":\"train\",\"step\":5,\"epo"};
}

void Parse(const std::string& bytes) {
  constexpr int64_t kStep = 5;
  for (const bool trained : {false, true}) {
    const KeptLines kept = KeepLines(bytes, kStep, trained);
    std::istringstream lines(kept.text);
    for (std::string line; std::getline(lines, line);) {
      Must(bytes.find(line) != std::string::npos, "nothing is made up: " + line);
      const auto step = nlohmann::json::parse(line).at("step").get<int64_t>();
      Must(step >= 0 && step <= kStep, "no line is of a later step: " + line);
    }
    Must(KeepLines(kept.text, kStep, trained).text == kept.text, "what is kept is kept again");
    if (!trained) ++(kept.text.empty() ? outcomes.refused : outcomes.accepted);
  }
}

}  // namespace late_phase
