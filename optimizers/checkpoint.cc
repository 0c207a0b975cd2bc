#include "optimizers/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace late_phase {
namespace {

namespace fs = std::filesystem;
using tensorflow::Tensor;

constexpr char kBundle[] = "state";
constexpr char kStep[] = "late_phase_checkpoint/step";
constexpr char kThreads[] = "late_phase_checkpoint/threads";
constexpr char kSettings[] = "late_phase_checkpoint/settings";

Tensor Number(int64_t value) {
  Tensor tensor(tensorflow::DT_INT64, {});
  tensor.scalar<int64_t>()() = value;
  return tensor;
}

// The number in a tensor that Number made; false if it is none.
bool ReadNumber(const Tensor& tensor, int64_t* value) {
  if (tensor.dtype() != tensorflow::DT_INT64 || tensor.dims() != 0) return false;
  *value = tensor.scalar<int64_t>()();
  return true;
}

absl::Status Failed(const std::string& what, const std::error_code& error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", error.message()));
}

// A rename lasts only when the folder it happened in is on disk.
void SyncFolder(const fs::path& folder) {
  const int file = open(folder.c_str(), O_RDONLY | O_DIRECTORY);
  if (file < 0) return;
  fsync(file);
  close(file);
}

void SyncFile(const fs::path& path) {
  const int file = open(path.c_str(), O_RDONLY);
  if (file < 0) return;
  fsync(file);
  close(file);
}

// Complete checkpoints, oldest first: the numbers are padded, so names sort like steps.
std::vector<fs::path> Checkpoints(const std::string& dir) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    if (entry.path().filename().string().rfind("step-", 0) == 0) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

absl::Status WriteCheckpoint(const std::string& dir, const CheckpointState& state) {
  const fs::path folder(dir), final = folder / absl::StrFormat("step-%012d", state.step),
                              aside = folder / ".incomplete";
  // The same step of the same run: there is nothing new to keep.
  if (fs::exists(final)) return absl::OkStatus();
  std::error_code error;
  fs::remove_all(aside, error);
  fs::create_directories(aside, error);
  if (error) return Failed(absl::StrCat("cannot make the folder ", aside.string()), error);
  tensorflow::BundleWriter writer(tensorflow::Env::Default(), (aside / kBundle).string());
  // The bundle wants its keys in order.
  std::map<std::string, Tensor> tensors = state.variables;
  tensors[kStep] = Number(state.step);
  tensors[kThreads] = Number(state.threads);
  Tensor settings(tensorflow::DT_STRING, {static_cast<int64_t>(state.settings.size())});
  for (size_t i = 0; i < state.settings.size(); ++i) {
    settings.flat<tensorflow::tstring>()(i) =
        absl::StrCat(state.settings[i].first, "=", state.settings[i].second);
  }
  tensors[kSettings] = settings;
  for (const auto& [key, tensor] : tensors) {
    if (absl::Status status = writer.Add(key, tensor); !status.ok()) return status;
  }
  if (absl::Status status = writer.Finish(); !status.ok()) return status;
  for (const auto& entry : fs::directory_iterator(aside, error)) SyncFile(entry.path());
  const std::vector<fs::path> older = Checkpoints(dir);
  fs::rename(aside, final, error);
  if (error) return Failed(absl::StrCat("cannot rename to ", final.string()), error);
  SyncFolder(folder);
  for (const fs::path& path : older) fs::remove_all(path, error);
  return absl::OkStatus();
}

std::optional<std::string> LatestCheckpoint(const std::string& dir) {
  const std::vector<fs::path> found = Checkpoints(dir);
  return found.empty() ? std::nullopt : std::optional<std::string>(found.back().string());
}

absl::Status ReadCheckpoint(const std::string& path, CheckpointState* state) {
  tensorflow::BundleReader reader(tensorflow::Env::Default(), (fs::path(path) / kBundle).string());
  if (!reader.status().ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a readable checkpoint: ", path, ": ", reader.status().message()));
  }
  reader.Seek("");
  for (reader.Next(); reader.Valid(); reader.Next()) {
    const std::string key(reader.key());
    Tensor tensor;
    tensorflow::DataType dtype;
    tensorflow::TensorShape shape;
    absl::Status status = reader.LookupDtypeAndShape(key, &dtype, &shape);
    if (status.ok()) {
      tensor = Tensor(dtype, shape);
      status = reader.Lookup(key, &tensor);
    }
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("not a readable checkpoint: ", path, ": ", key, ": ", status.message()));
    }
    auto wrong_type = [&](const char* wanted) {
      return absl::InvalidArgumentError(
          absl::StrCat("not a readable checkpoint: ", path, ": `", key, "` must be ", wanted,
                       ". Received: ", tensorflow::DataTypeString(dtype), shape.DebugString()));
    };
    if (key == kStep) {
      if (!ReadNumber(tensor, &state->step)) return wrong_type("int64[]");
    } else if (key == kThreads) {
      int64_t threads = 0;
      if (!ReadNumber(tensor, &threads)) return wrong_type("int64[]");
      state->threads = static_cast<int>(threads);
    } else if (key == kSettings) {
      if (dtype != tensorflow::DT_STRING) return wrong_type("strings");
      for (int64_t i = 0; i < tensor.NumElements(); ++i) {
        const std::pair<std::string, std::string> setting = absl::StrSplit(
            std::string(tensor.flat<tensorflow::tstring>()(i)), absl::MaxSplits('=', 1));
        state->settings.push_back(setting);
      }
    } else {
      state->variables[key] = tensor;
    }
  }
  return absl::OkStatus();
}

absl::Status SameSettings(const Settings& saved, const Settings& wanted) {
  const std::map<std::string, std::string> before(saved.begin(), saved.end());
  for (const auto& [name, value] : wanted) {
    const auto found = before.find(name);
    const std::string old = found == before.end() ? "(not there)" : found->second;
    if (old == value) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "`", name, "` must be ", old, ", as in the checkpoint. Received: ", name, "=", value));
  }
  const std::map<std::string, std::string> now(wanted.begin(), wanted.end());
  for (const auto& [name, value] : saved) {
    if (now.count(name) > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("`", name, "` must be ", value, ", as in the checkpoint. Received: none"));
  }
  return absl::OkStatus();
}

}  // namespace late_phase
