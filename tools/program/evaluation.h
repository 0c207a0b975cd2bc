// Input and output of `eval` (Experiment::Evaluate). The command is
// tools/program/eval_command.cc.
#ifndef LATE_PHASE_TOOLS_PROGRAM_EVALUATION_H_
#define LATE_PHASE_TOOLS_PROGRAM_EVALUATION_H_

#include <cstdint>
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

// A row of the table, and what evaluation.json says about it.
struct EvaluationRow {
  std::string run, weights;
  Metrics metrics;  // by the columns' names
  Json details = Json::object();
};

// What to evaluate. Everything below `weights` applies only to networks that classify images.
struct EvaluationOptions {
  std::string split = "test";
  std::vector<std::string> weights;  // empty: all that a run has
  bool ensemble = false;             // also average the runs' predictions
  std::vector<std::string> ood;      // paths (models/images/image_set.h)
  std::string corrupt;               // folder (models/images/corrupted_images.h); empty: none
  std::vector<double> flatness;      // σ; empty: not measured
  std::string flatness_split = "training";
  int64_t flatness_images = 10000;  // the first ones
  int64_t samples = 10;             // draws for mc-dropout, swag and flatness
  int64_t seed = 0;                 // of the draws
};

struct Evaluation {
  std::vector<Column> columns;  // in addition to the experiment's own
  std::vector<EvaluationRow> rows;
  Json details = Json::object();  // for evaluation.json, beside the rows
  std::string below;              // text below the table: notes and further tables
};

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_EVALUATION_H_
