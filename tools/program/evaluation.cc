#include "tools/program/evaluation.h"

#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tools/program/session.h"
#include "tools/program/weight_names.h"

namespace late_phase {
namespace {

// The metrics of a run, by the names of its weights.
std::vector<EvaluationRow> EvaluateRun(const EvaluatedRun& one, Split split,
                                       const std::vector<std::string>& names) {
  Task* task = one.task.get();
  Run* run = one.run.get();
  Task::MemberMetrics by_member;
  if (absl::c_linear_search(names, "ensemble")) {
    by_member = Require(task->EvaluateMembers(run, split));
  }
  std::vector<EvaluationRow> rows;
  for (const std::string& name : names) {
    Metrics metrics;
    if (name == "ensemble") {
      metrics = by_member.ensemble;
    } else if (name == "collapsed" || name == "swa") {
      metrics = Require(task->Evaluate(run, split, ParseWeightSet(name, *task, *run)));
    } else if (const int32_t member = ParseMember(name, *task, *run); !by_member.members.empty()) {
      metrics = by_member.members[member];
    } else {
      metrics = Require(task->Evaluate(run, split, WeightSet::kCurrent, member));
    }
    rows.push_back({one.folder, name, metrics, Json(metrics)});
  }
  return rows;
}

}  // namespace

Evaluation Experiment::Evaluate(const std::vector<EvaluatedRun>& runs,
                                const EvaluationOptions& options) const {
  for (const std::string& name : options.weights) {
    if (!IsForImages(name)) continue;
    throw NoSuchWeights(name, *runs[0].task, *runs[0].run,
                        absl::StrCat(name, " is for runs of cifar"));
  }
  std::vector<std::vector<std::string>> names;
  for (const EvaluatedRun& one : runs) {
    names.push_back(WeightNames(options.weights, *one.task, *one.run));
  }
  const Split split = options.split == "test" ? Split::kTest : Split::kValidation;
  Evaluation evaluation;
  for (size_t r = 0; r < runs.size(); ++r) {
    absl::c_move(EvaluateRun(runs[r], split, names[r]), std::back_inserter(evaluation.rows));
  }
  return evaluation;
}

}  // namespace late_phase
