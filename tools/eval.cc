// tools/latephase eval: the figures of a trained run's weights.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tools/commands.h"
#include "tools/experiment.h"
#include "tools/program.h"
#include "tools/runs.h"
#include "tools/session.h"

namespace late_phase {
namespace {

constexpr char kCommand[] = "tools/latephase eval";
constexpr char kWeights[] = "collapsed, swa, members, ensemble, current, or member-K";

// The table, row by row; the first one brings the head along, so that a refusal prints nothing
// else.
class Table {
 public:
  Table(const std::string& title, const std::string& split, const std::vector<Column>& columns)
      : columns_(columns), head_(title + "\n\n| weights |") {
    for (const Column& column : columns)
      absl::StrAppend(&head_, " ", split, " ", column.head, " |");
    absl::StrAppend(&head_, "\n|---|");
    for (size_t i = 0; i < columns.size(); ++i) absl::StrAppend(&head_, "---|");
    absl::StrAppend(&head_, "\n");
  }

  void Print(const std::string& weights, const Figures& figures) {
    std::string row = absl::StrCat(head_, "| ", weights, " |");
    for (const Column& column : columns_) absl::StrAppend(&row, " ", column.Number(figures), " |");
    std::puts(row.c_str());
    std::fflush(stdout);
    head_.clear();
  }

 private:
  const std::vector<Column> columns_;
  std::string head_;
};

// Every set that the run has.
std::vector<std::string> AllSets(const Run& run) {
  std::vector<std::string> sets = {"collapsed"};
  if (HasAverage(run.options(), run.step())) sets.push_back("swa");
  if (HasMembers(run.options(), run.step())) {
    sets.insert(sets.end(), {"members", "ensemble"});
  }
  return sets;
}

// "member-3" -> 3; "current" is the member that was trained last.
int32_t MemberOf(const std::string& weights, const Run& run) {
  const LatePhaseOptions& options = run.options();
  const int64_t alive = HasMembers(options, run.step()) ? options.members : 1;
  if (weights == "current") return LastMember(options, run.step());
  int32_t k = -1;
  const bool is_number =
      weights.rfind("member-", 0) == 0 && absl::SimpleAtoi(weights.substr(7), &k);
  if (!is_number) {
    throw UsageError(absl::StrCat("`weights` must be ", kWeights, ". Received: weights=", weights));
  }
  if (k < 0 || k >= alive) {
    throw UsageError(absl::StrCat("`weights` must be member-0 to member-", alive - 1, " at step ",
                                  run.step(), ". Received: weights=", weights));
  }
  return k;
}

void EvaluateSets(const std::vector<std::string>& sets, Split split, Task* task, Run* run,
                  Table* table) {
  std::vector<Figures> members;  // both of members and ensemble come from one pass
  Figures ensemble;
  for (const std::string& set : sets) {
    Figures figures;
    if (set == "members" || set == "ensemble") {
      if (run->step() <= run->options().start) {
        throw UsageError(absl::StrCat("`weights` must be there: the members begin at step ",
                                      run->options().start, ". Received: weights=", set,
                                      " at step ", run->step()));
      }
      if (members.empty()) Require(task->EvaluateMembers(run, split, &members, &ensemble));
      if (set == "ensemble") table->Print(set, ensemble);
      if (set == "members") {
        for (size_t k = 0; k < members.size(); ++k) {
          table->Print(absl::StrCat("member-", k), members[k]);
        }
      }
    } else if (set == "collapsed" || set == "swa") {
      Require(task->Evaluate(run, split, WeightSetOf(set, *run), 0, &figures));
      table->Print(set, figures);
    } else {
      Require(task->Evaluate(run, split, WeightSet::kCurrent, MemberOf(set, *run), &figures));
      table->Print(set, figures);
    }
  }
}

Split SplitOf(const std::string& name, const std::vector<Split>& splits) {
  std::vector<std::string> names;
  for (const Split split : splits) {
    if (name == SplitName(split)) return split;
    names.push_back(SplitName(split));
  }
  throw UsageError(absl::StrCat("`split` must be one of ", absl::StrJoin(names, ", "),
                                ". Received: split=", name));
}

int Main(int argc, char** argv) {
  SessionFlags session;
  std::string dir, weights, data, split_name = "test";
  CLI::App app("The figures of a run's weights.", kCommand);
  app.add_option("RUN_DIR", dir, "folder of a run; of several models the late-phase one is taken")
      ->required();
  app.add_option("--weights", weights,
                 absl::StrCat("with commas between: ", kWeights, "; else all the run has"));
  app.add_option("--split", split_name, "test, or validation if the run's data has one")
      ->capture_default_str();
  app.add_option("--data", data, "as in training");
  AddSessionFlags(&session, &app);
  ParseCommandLine(argc, argv, &app);
  const std::string folder = RunFolderIn(dir);
  ChooseDevice(&session);
  const std::unique_ptr<Experiment> experiment = ReadExperiment(folder);
  experiment->recipe().device = session.device;
  experiment->OpenData(data);
  const std::unique_ptr<Task> task = experiment->MakeTask();
  const Split split = SplitOf(split_name, task->splits());
  const std::unique_ptr<Run> run = RestoreRun(folder, session.threads, task.get());
  const std::vector<std::string> sets =
      weights.empty() ? AllSets(*run) : absl::StrSplit(weights, ',');
  Table table(absl::StrCat(folder, ", step ", run->step()), split_name,
              experiment->program().columns);
  EvaluateSets(sets, split, task.get(), run.get(), &table);
  return 0;
}

}  // namespace

int EvalCommand(int argc, char** argv) {
  return RunProgram(kCommand, [&] { return Main(argc, argv); });
}

}  // namespace late_phase
