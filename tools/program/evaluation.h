// What `eval` works on and what comes out of it. The command is tools/program/eval_command.cc; the
// metrics of image networks are computed in tools/program/image_evaluation.cc.
#ifndef LATE_PHASE_TOOLS_PROGRAM_EVALUATION_H_
#define LATE_PHASE_TOOLS_PROGRAM_EVALUATION_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tools/program/experiment.h"

namespace late_phase {

using Json = nlohmann::ordered_json;

// A run at its newest checkpoint, to be evaluated.
struct EvaluatedRun {
  std::string folder;
  std::unique_ptr<Experiment> experiment;
  std::unique_ptr<Task> task;
  std::unique_ptr<Run> run;
};

// A line of the table, and what evaluation.json says of it.
struct EvaluationRow {
  std::string run, weights;
  Metrics metrics;  // by the columns' names
  Json details = Json::object();
};

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_EVALUATION_H_
