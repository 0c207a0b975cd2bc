#include "models/training/run_folder.h"

#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "models/training/metrics_lines.h"
#include "nlohmann/json.hpp"
#include "optimizers/disk.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"
#include "tensorflow/core/util/event.pb.h"

namespace late_phase {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

absl::Status Failed(const std::string& what, const std::string& why) {
  return absl::UnavailableError(absl::StrCat("cannot ", what, ": ", why));
}

// Copies the lines that still hold, and returns their seconds of training. Nothing is written
// before all of `from` was read.
absl::StatusOr<double> Keep(const std::string& from, const std::string& to, int64_t step,
                            bool trained) {
  std::string text;
  std::error_code error = ReadWholeFile(from, &text);
  if (error == std::errc::no_such_file_or_directory) error.clear();
  if (error) return Failed("read " + from, error.message());
  const KeptLines kept = KeepLines(text, step, trained);
  error = ReplaceFile(to, kept.text);
  if (error) return Failed("write " + to, error.message());
  return kept.seconds;
}

void Append(const Metrics& metrics, Json* line) {
  for (const auto& [name, value] : metrics) (*line)[name] = value;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunFolder>> RunFolder::Open(const std::string& path, int64_t step,
                                                           bool trained) {
  std::unique_ptr<RunFolder> folder(new RunFolder);
  folder->path_ = path;
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return Failed("create the folder " + path, error.message());
  const std::string metrics = path + "/metrics.jsonl";
  TF_ASSIGN_OR_RETURN(folder->earlier_seconds_, Keep(metrics, metrics, step, trained));
  folder->metrics_ = std::fopen(metrics.c_str(), "a");
  if (folder->metrics_ == nullptr) return Failed("open " + metrics, std::strerror(errno));
  folder->events_ = std::make_unique<tensorflow::EventsWriter>(path + "/events");
  TF_RETURN_IF_ERROR(folder->events_->Init());
  // TensorBoard then forgets what it has read about later steps.
  tensorflow::Event start;
  start.set_step(step);
  start.mutable_session_log()->set_status(tensorflow::SessionLog::START);
  folder->events_->WriteEvent(start);
  return folder;
}

std::unique_ptr<RunFolder> RunFolder::Nowhere() {
  return std::unique_ptr<RunFolder>(new RunFolder);
}

RunFolder::~RunFolder() {
  if (metrics_ != nullptr) std::fclose(metrics_);
}

absl::Status RunFolder::CopyMetrics(const std::string& from, const std::string& to, int64_t step) {
  std::error_code error;
  fs::create_directories(to, error);
  if (error) return Failed("create the folder " + to, error.message());
  return Keep(from + "/metrics.jsonl", to + "/metrics.jsonl", step, /*trained=*/false).status();
}

absl::Status RunFolder::Check() const {
  if (path_.empty()) return absl::OkStatus();
  const std::string path = path_ + "/metrics.jsonl";
  struct stat named = {}, opened = {};
  if (stat(path.c_str(), &named) != 0)
    return Failed("write to " + path_, path + ": " + std::strerror(errno));
  if (fstat(fileno(metrics_), &opened) != 0)
    return Failed("write to " + path_, std::strerror(errno));
  if (named.st_dev == opened.st_dev && named.st_ino == opened.st_ino) return absl::OkStatus();
  return Failed("write to " + path_, path + " was replaced by another process");
}

absl::Status RunFolder::Write(const std::string& line) {
  // Flushed at once: a killed process loses nothing that a checkpoint covers.
  if (std::fputs((line + "\n").c_str(), metrics_) < 0 || std::fflush(metrics_) != 0) {
    return Failed("write " + path_ + "/metrics.jsonl", std::strerror(errno));
  }
  return events_->Flush();
}

namespace {

tensorflow::Event ScalarEvent(int64_t step, const std::string& prefix, const Metrics& metrics) {
  tensorflow::Event event;
  event.set_step(step);
  event.set_wall_time(
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  for (const auto& [name, value] : metrics) {
    auto* scalar = event.mutable_summary()->add_value();
    scalar->set_tag(absl::StrCat(prefix, "/", name));
    scalar->set_simple_value(static_cast<float>(value));
  }
  return event;
}

}  // namespace

absl::Status RunFolder::Log(const char* kind, int64_t step, double epoch, const Metrics& metrics) {
  if (path_.empty()) return absl::OkStatus();
  Json line = {{"kind", kind}, {"step", step}, {"epoch", epoch}};
  Append(metrics, &line);
  events_->WriteEvent(ScalarEvent(step, kind, metrics));
  return Write(line.dump());
}

absl::Status RunFolder::LogTraining(int64_t step, double epoch, const Metrics& metrics) {
  return Log("train", step, epoch, metrics);
}

absl::Status RunFolder::LogMembers(int64_t step, double epoch, const Metrics& metrics) {
  return Log("members", step, epoch, metrics);
}

absl::Status RunFolder::LogEvaluation(int64_t step, double epoch, const std::string& split,
                                      const std::string& weights, const Metrics& metrics) {
  if (path_.empty()) return absl::OkStatus();
  Json line = {{"kind", "evaluation"},
               {"step", step},
               {"epoch", epoch},
               {"split", split},
               {"weights", weights}};
  Append(metrics, &line);
  events_->WriteEvent(ScalarEvent(step, absl::StrCat(split, "/", weights), metrics));
  return Write(line.dump());
}

}  // namespace late_phase
