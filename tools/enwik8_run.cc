#include "tools/enwik8_run.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensorflow/core/framework/device_attributes.pb.h"
#include "tensorflow/core/public/session.h"
#include "tools/program.h"

namespace late_phase {

namespace fs = std::filesystem;

SettingList Enwik8Settings(Enwik8Config* config) {
  constexpr int64_t kMany = 1000000000000;
  Enwik8Options* o = &config->options;
  auto positive = [](double x) { return x > 0; };
  auto share = [](double x) { return x > 0 && x <= 1; };
  auto below_one = [](double x) { return x >= 0 && x < 1; };
  auto not_negative = [](double x) { return x >= 0; };
  return {
      Choice("program", "what this is a run of", {kEnwik8}, &config->program),
      Choice("model", "the network to train, or all three", {"base", "rank1", "late-phase", "all"},
             &o->model),
      Integer("seed", "of the weights and the members' noise", 0, kMany, &o->seed),
      Integer("seeds", "runs of each model, with consecutive seeds", 1, 1000, &config->seeds),
      Integer("units", "of the LSTM", 1, 100000, &o->units),
      Integer("embedding", "numbers per character", 1, 100000, &o->embedding),
      Integer("train_characters", "the first of the training split; 0: all", 0, kMany,
              &o->limits.train_characters),
      Integer("validation_characters", "the first of the validation split; 0: all", 0, kMany,
              &o->limits.validation_characters),
      Integer("test_characters", "the first of the test split; 0: all", 0, kMany,
              &o->limits.test_characters),
      Integer("batch", "parallel streams of text", 1, 1000000, &o->batch),
      Integer("sequence", "characters through which gradients flow back", 1, 1000000, &o->sequence),
      Real("epochs", "passes over the training text", "a number > 0", positive, &o->epochs),
      Integer("steps", "minibatches in all, instead of epochs; 0: epochs", 0, kMany, &o->steps),
      Real("learning_rate", "of Adam", "a number > 0", positive, &o->learning_rate),
      Real("member_learning_rate", "of the rank-1 factors; 0: as learning_rate", "a number >= 0",
           not_negative, &o->member_learning_rate),
      Real("beta1", "of Adam", "a number in [0, 1)", below_one, &o->beta1),
      Real("beta2", "of Adam", "a number in [0, 1)", below_one, &o->beta2),
      Real("epsilon", "of Adam", "a number > 0", positive, &o->epsilon),
      Real("clip_norm", "greatest norm of a minibatch's gradients; 0: no clipping", "a number >= 0",
           not_negative, &o->clip_norm),
      Integer("members", "late-phase members K", 2, 1000, &o->members),
      Real("t0", "epochs before the members are spawned", "a number >= 0", not_negative, &o->t0),
      Real("sigma", "spawning noise, relative to the weights", "a number >= 0", not_negative,
           &o->sigma),
      Real("gamma", "scale of the base's summed gradients", "a number in (0, 1]", share, &o->gamma),
      Real(
          "swa_start", "epochs before averaging over time begins; -1: never", "a number >= -1",
          [](double x) { return x >= -1; }, &o->swa_start),
      Real("swa_every", "epochs between samples", "a number > 0", positive, &o->swa_every),
      Choice("dtype", "of weights and computation", {"float32", "float64"}, &o->dtype),
      Integer("log_every", "minibatches between lines of metrics.jsonl", 1, kMany,
              &config->log_every),
      Real("evaluate_every", "epochs between validations; 0: only at the end", "a number >= 0",
           not_negative, &config->evaluate_every),
      Integer("checkpoint_every", "minibatches between checkpoints", 1, kMany,
              &config->checkpoint_every),
  };
}

Enwik8Flags::Enwik8Flags() : threads(std::max(1u, std::thread::hardware_concurrency())) {}

void AddDataFlag(Enwik8Flags* flags, CLI::App* app) {
  app->add_option("--data", flags->data,
                  "enwik8, raw, .gz or .zip, or its folder; else LATE_PHASE_DATA, the cache, or "
                  "fetched once");
}

void AddDeviceFlags(Enwik8Flags* flags, CLI::App* app) {
  app->add_option("--device", flags->device, "CPU:0, GPU:0, …; else a GPU if there is one");
  app->add_option("--threads", flags->threads, "of the CPU; results depend on it by rounding")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

void Require(const absl::Status& status) {
  if (status.ok()) return;
  const std::string text(status.message());
  if (absl::IsInvalidArgument(status) || absl::IsNotFound(status)) throw UsageError(text);
  throw std::runtime_error(text);
}

void ChooseDevice(Enwik8Flags* flags) {
  const std::unique_ptr<tensorflow::Session> session(
      tensorflow::NewSession(tensorflow::SessionOptions()));
  std::vector<tensorflow::DeviceAttributes> devices;
  Require(session->ListDevices(&devices));
  std::vector<std::string> names;
  for (const auto& device : devices) {
    const size_t at = device.name().rfind("device:");
    names.push_back(device.name().substr(at + std::string("device:").size()));
  }
  if (flags->device.empty()) {
    const auto gpu = std::find_if(names.begin(), names.end(), [](const std::string& name) {
      return absl::StartsWith(name, "GPU:");
    });
    flags->device = gpu == names.end() ? "CPU:0" : *gpu;
  } else if (std::find(names.begin(), names.end(), flags->device) == names.end()) {
    throw UsageError(
        absl::StrCat("`device` must be one of ", absl::StrJoin(names, ", "),
                     ", the devices that TensorFlow finds. Received: device=", flags->device));
  }
}

ByteText OpenText(const Enwik8Flags& flags, const TextLimits& limits) {
  if (flags.data.empty()) throw UsageError("`data` must name the text. Received: data=");
  ByteText text;
  const std::string complaint = text.Open(flags.data, limits);
  if (!complaint.empty()) throw UsageError(complaint);
  return text;
}

std::string RunFolderIn(const std::string& dir) {
  for (const char* inside :
       {"", "/late-phase", "/rank1", "/base", "/seed-0/late-phase", "/seed-0/rank1"}) {
    if (fs::exists(dir + inside + "/checkpoint")) return dir + inside;
  }
  throw UsageError(absl::StrCat(
      "RUN_DIR must be the folder of a run, with config.toml and checkpoint/. Received: ", dir));
}

std::unique_ptr<RestoredRun> RestoreRun(const std::string& folder, const Enwik8Flags& flags,
                                        bool with_text) {
  auto restored = std::make_unique<RestoredRun>();
  ReadSettings(folder + "/config.toml", kEnwik8, Enwik8Settings(&restored->config));
  Enwik8Options& options = restored->config.options;
  options.device = flags.device;
  const std::string checkpoints = folder + "/checkpoint";
  if (with_text) {
    restored->text = OpenText(flags, options.limits);
    Require(Enwik8::Create(options, &restored->text, &restored->task));
  } else {
    Require(Enwik8::CreateWithoutText(options, checkpoints, &restored->task));
  }
  Require(restored->task->MakeRun(static_cast<int>(flags.threads), &restored->run));
  std::string note;  // other threads, other rounding: of no matter here
  Require(restored->run->Restore(checkpoints, &note));
  return restored;
}

WeightSet WeightSetOf(const std::string& name, const RestoredRun& restored) {
  if (name == "collapsed") return WeightSet::kCollapsed;
  const LatePhaseOptions& options = restored.run->options();
  if (!HasAverage(options, restored.run->step())) {
    throw UsageError(absl::StrCat("`weights` must be there: SWA has no sample at step ",
                                  restored.run->step(), ". Received: weights=", name));
  }
  return WeightSet::kSwa;
}

}  // namespace late_phase
