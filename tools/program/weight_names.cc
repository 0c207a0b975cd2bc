#include "tools/program/weight_names.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/program/command_line.h"

namespace late_phase {
namespace {

void RequireMembers(const std::string& name, const Task& task, const Run& run) {
  if (run.step() > run.options().start) return;
  throw NoSuchWeights(name, task, run,
                      absl::StrCat("the members are spawned at step ", run.options().start));
}

}  // namespace

UsageError NoSuchWeights(const std::string& name, const Task& task, const Run& run,
                         const std::string& reason) {
  std::string text = absl::StrCat("no such weights: ", name, "; this run has collapsed, current");
  if (HasAverage(run.options(), run.step())) absl::StrAppend(&text, ", swa");
  if (const int64_t members = task.MembersAt(run.step()); members > 1) {
    absl::StrAppend(&text, ", member-0 to member-", members - 1, ", ensemble");
  }
  if (!reason.empty()) absl::StrAppend(&text, " (", reason, ")");
  return UsageError(text);
}

WeightSet ParseWeightSet(const std::string& name, const Task& task, const Run& run) {
  if (name == "collapsed") return WeightSet::kCollapsed;
  if (!HasAverage(run.options(), run.step())) {
    throw NoSuchWeights(name, task, run, absl::StrCat("SWA has no sample at step ", run.step()));
  }
  return WeightSet::kSwa;
}

int32_t ParseMember(const std::string& name, const Task& task, const Run& run) {
  const int64_t alive = task.MembersAt(run.step());
  if (name == "current") return LastMember(run.options(), run.step());
  int32_t k = -1;
  const bool is_number = name.rfind("member-", 0) == 0 && absl::SimpleAtoi(name.substr(7), &k);
  if (!is_number) {
    throw UsageError(absl::StrCat("no such weights: ", name, "; there are ", kWeightNames));
  }
  if (k < 0 || k >= alive) throw NoSuchWeights(name, task, run);
  return k;
}

std::string BatchNormWay(const std::string& name) {
  for (const char* way : {"mean", "affine", "reestimated"}) {
    if (name == absl::StrCat("collapsed-", way)) return way;
  }
  return "";
}

bool IsForImages(const std::string& name) {
  return name == "mc-dropout" || name == "swag" || !BatchNormWay(name).empty();
}

std::vector<std::string> WeightNames(const std::vector<std::string>& asked, const Task& task,
                                     const Run& run) {
  std::vector<std::string> all = asked, names;
  if (all.empty()) {
    all = {"collapsed"};
    if (HasAverage(run.options(), run.step())) all.push_back("swa");
    if (task.MembersAt(run.step()) > 1) all.insert(all.end(), {"members", "ensemble"});
  }
  for (const std::string& name : all) {
    if (name == "members") {
      RequireMembers(name, task, run);
      for (int64_t k = 0; k < task.MembersAt(run.step()); ++k) {
        names.push_back(absl::StrCat("member-", k));
      }
      continue;
    }
    if (name == "ensemble") {
      RequireMembers(name, task, run);
    } else if (name == "collapsed" || name == "swa") {
      ParseWeightSet(name, task, run);
    } else if (!IsForImages(name)) {
      ParseMember(name, task, run);
    }
    names.push_back(name);
  }
  return names;
}

}  // namespace late_phase
