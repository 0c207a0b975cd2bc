// tools/latephase eval: the figures of a trained run's weights.
#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/commands.h"
#include "tools/enwik8_run.h"
#include "tools/program.h"

namespace late_phase {
namespace {

constexpr char kCommand[] = "tools/latephase eval";
constexpr char kWeights[] = "collapsed, swa, members, ensemble, current, or member-K";

// A row of the table; the first one brings its head along, so that a refusal prints nothing else.
void Print(const std::string& weights, const Figures& figures, std::string* head) {
  std::fputs(head->c_str(), stdout);
  head->clear();
  std::printf("| %s | %.4f |\n", weights.c_str(), figures.at("bpc"));
  std::fflush(stdout);
}

// Every set that the run has.
std::vector<std::string> AllSets(const RestoredRun& restored) {
  std::vector<std::string> sets = {"collapsed"};
  if (HasAverage(restored.run->options(), restored.run->step())) sets.push_back("swa");
  if (restored.task->members() > 1 && restored.run->step() > restored.run->options().start) {
    sets.insert(sets.end(), {"members", "ensemble"});
  }
  return sets;
}

// "member-3" -> 3; "current" is the member whose turn is next.
int64_t MemberOf(const std::string& weights, const RestoredRun& restored) {
  const LatePhaseOptions& options = restored.run->options();
  const int64_t since = restored.run->step() - options.start;
  const int64_t alive = since > 0 ? options.members : 1;
  if (weights == "current") return since > 0 ? since % options.members : 0;
  int64_t k = -1;
  const bool is_number =
      weights.rfind("member-", 0) == 0 && absl::SimpleAtoi(weights.substr(7), &k);
  if (!is_number) {
    throw UsageError(absl::StrCat("`weights` must be ", kWeights, ". Received: weights=", weights));
  }
  if (k < 0 || k >= alive) {
    throw UsageError(absl::StrCat("`weights` must be member-0 to member-", alive - 1, " at step ",
                                  restored.run->step(), ". Received: weights=", weights));
  }
  return k;
}

void EvaluateSets(const std::vector<std::string>& sets, Split split, RestoredRun* restored,
                  std::string head) {
  std::vector<Figures> members;  // both of members and ensemble come from one pass
  Figures ensemble;
  for (const std::string& set : sets) {
    Figures figures;
    if (set == "members" || set == "ensemble") {
      if (restored->run->step() <= restored->run->options().start) {
        throw UsageError(absl::StrCat("`weights` must be there: the members begin at step ",
                                      restored->run->options().start, ". Received: weights=", set,
                                      " at step ", restored->run->step()));
      }
      if (members.empty()) {
        Require(restored->task->EvaluateMembers(restored->run.get(), split, &members, &ensemble));
      }
      if (set == "ensemble") Print(set, ensemble, &head);
      if (set == "members") {
        for (size_t k = 0; k < members.size(); ++k)
          Print(absl::StrCat("member-", k), members[k], &head);
      }
    } else if (set == "collapsed" || set == "swa") {
      Require(restored->task->Evaluate(restored->run.get(), split, WeightSetOf(set, *restored),
                                       &figures));
      Print(set, figures, &head);
    } else {
      Require(restored->task->EvaluateMember(restored->run.get(), split, MemberOf(set, *restored),
                                             &figures));
      Print(set, figures, &head);
    }
  }
}

int Main(int argc, char** argv) {
  Enwik8Flags flags;
  std::string dir, weights, split = "test";
  CLI::App app("The bits per character of a run's weights.", kCommand);
  app.add_option("RUN_DIR", dir, "folder of a run; of several models the late-phase one is taken")
      ->required();
  app.add_option("--weights", weights,
                 absl::StrCat("with commas between: ", kWeights, "; else all the run has"));
  app.add_option("--split", split, "test or validation")
      ->check(CLI::IsMember({"test", "validation"}))
      ->capture_default_str();
  AddDataFlag(&flags, &app);
  AddDeviceFlags(&flags, &app);
  ParseCommandLine(argc, argv, &app);
  const std::string folder = RunFolderIn(dir);
  ChooseDevice(&flags);
  const std::unique_ptr<RestoredRun> restored = RestoreRun(folder, flags, /*with_text=*/true);
  const std::vector<std::string> sets =
      weights.empty() ? AllSets(*restored) : absl::StrSplit(weights, ',');
  EvaluateSets(sets, split == "test" ? Split::kTest : Split::kValidation, restored.get(),
               absl::StrCat(folder, ", step ", restored->run->step(), "\n\n| weights | ", split,
                            " BPC |\n|---|---|\n"));
  return 0;
}

}  // namespace

int Evaluate(int argc, char** argv) {
  return RunProgram(kCommand, [&] { return Main(argc, argv); });
}

}  // namespace late_phase
