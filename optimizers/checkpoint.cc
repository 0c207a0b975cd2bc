#include "optimizers/checkpoint.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "optimizers/disk.h"
#include "optimizers/number_text.h"
#include "tensorflow/core/lib/core/coding.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace late_phase {
namespace {

namespace fs = std::filesystem;
using tensorflow::Tensor;

constexpr char kBundle[] = "state";
constexpr char kStep[] = "late_phase_checkpoint/step";
constexpr char kThreads[] = "late_phase_checkpoint/threads";
constexpr char kSettings[] = "late_phase_checkpoint/settings";
constexpr char kFormat[] = "late_phase_checkpoint/format";

Tensor Number(int64_t value) {
  Tensor tensor(tensorflow::DT_INT64, {});
  tensor.scalar<int64_t>()() = value;
  return tensor;
}

// The number in a tensor that Number made; none for any other tensor.
std::optional<int64_t> ReadNumber(const Tensor& tensor) {
  if (tensor.dtype() != tensorflow::DT_INT64 || tensor.dims() != 0) return std::nullopt;
  return tensor.scalar<int64_t>()();
}

absl::Status Failed(const std::string& what, const std::error_code& error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", error.message()));
}

// Complete checkpoints, oldest first: the numbers are padded, so names sort like steps.
std::vector<std::string> Checkpoints(const std::string& dir) {
  std::vector<std::string> entries, found;
  if (ListFolder(dir, &entries)) return {};  // a folder that cannot be read has none
  for (const std::string& entry : entries) {
    if (fs::path(entry).filename().string().rfind("step-", 0) == 0) found.push_back(entry);
  }
  return found;
}

absl::Status WriteBundle(const std::string& prefix, const CheckpointState& state) {
  tensorflow::BundleWriter writer(tensorflow::Env::Default(), prefix);
  // The bundle needs its keys in order.
  for (const auto& [key, tensor] : ToTensors(state)) {
    TF_RETURN_IF_ERROR(writer.Add(key, tensor));
  }
  return writer.Finish();
}

// Whether the places that the end of an index names are inside of it. TensorFlow allocates a
// block's memory before it looks at any checksum, and a damaged end can ask for more than there is.
// A file that cannot be read, or is too short, is left to TensorFlow.
bool EndIsPlausible(const std::string& path) {
  constexpr size_t kEnd = 48, kMagic = 8;
  std::string index;
  if (ReadWholeFile(path, &index) || index.size() < kEnd) return true;
  absl::string_view end(index.data() + index.size() - kEnd, kEnd - kMagic);
  for (int i = 0; i < 4; ++i) {  // offset and size of two blocks
    uint64_t number = 0;
    if (!tensorflow::core::GetVarint64(&end, &number) || number > index.size()) return false;
  }
  return true;
}

absl::StatusOr<Tensor> ReadTensor(const std::string& key, tensorflow::BundleReader* reader) {
  tensorflow::DataType dtype;
  tensorflow::TensorShape shape;
  TF_RETURN_IF_ERROR(reader->LookupDtypeAndShape(key, &dtype, &shape));
  Tensor tensor(dtype, shape);
  TF_RETURN_IF_ERROR(reader->Lookup(key, &tensor));
  return tensor;
}

// Puts a tensor of the bundle where it belongs. Returns the type that it should have, or null if it
// has it.
[[nodiscard]] const char* Take(const std::string& key, const Tensor& tensor,
                               CheckpointState* state) {
  if (key == kSettings) {
    if (tensor.dtype() != tensorflow::DT_STRING) return "strings";
    for (int64_t i = 0; i < tensor.NumElements(); ++i) {
      const std::pair<std::string, std::string> setting = absl::StrSplit(
          std::string(tensor.flat<tensorflow::tstring>()(i)), absl::MaxSplits('=', 1));
      state->settings.push_back(setting);
    }
    return nullptr;
  }
  if (key != kStep && key != kThreads && key != kFormat) {
    state->variables[key] = tensor;
    return nullptr;
  }
  const std::optional<int64_t> number = ReadNumber(tensor);
  if (!number.has_value()) return "int64[]";
  if (key == kStep) state->step = *number;
  if (key == kThreads) state->threads = static_cast<int>(*number);
  if (key == kFormat) state->format = *number;
  return nullptr;
}

// The files of a folder, and their names.
std::error_code SyncAll(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error = ListFolder(folder, &files);
  for (size_t i = 0; i < files.size() && !error; ++i) error = SyncFile(files[i]);
  return error ? error : SyncFolder(folder);
}

}  // namespace

std::map<std::string, Tensor> ToTensors(const CheckpointState& state) {
  std::map<std::string, Tensor> tensors = state.variables;
  tensors[kStep] = Number(state.step);
  tensors[kThreads] = Number(state.threads);
  tensors[kFormat] = Number(state.format);
  Tensor settings(tensorflow::DT_STRING, {static_cast<int64_t>(state.settings.size())});
  for (size_t i = 0; i < state.settings.size(); ++i) {
    settings.flat<tensorflow::tstring>()(i) =
        absl::StrCat(state.settings[i].first, "=", state.settings[i].second);
  }
  tensors[kSettings] = settings;
  return tensors;
}

absl::StatusOr<CheckpointState> FromTensors(const std::map<std::string, Tensor>& tensors) {
  CheckpointState state;
  state.format = 0;
  for (const auto& [key, tensor] : tensors) {
    if (const char* wanted = Take(key, tensor, &state)) {
      return absl::InvalidArgumentError(absl::StrCat("`", key, "` must be ", wanted, ". Received: ",
                                                     tensorflow::DataTypeString(tensor.dtype()),
                                                     tensor.shape().DebugString()));
    }
  }
  return state;
}

absl::Status WriteCheckpoint(const std::string& dir, const CheckpointState& state) {
  const fs::path folder(dir), final = folder / absl::StrFormat("step-%012d", state.step),
                              aside = folder / ".incomplete";
  std::error_code error;
  const bool there = fs::exists(final, error);
  if (error) return Failed(absl::StrCat("cannot check for ", final.string()), error);
  // The same step of the same run: there is nothing new to keep.
  if (there) return absl::OkStatus();
  fs::remove_all(aside, error);
  if (!error) fs::create_directories(aside, error);
  if (error) return Failed(absl::StrCat("cannot create the folder ", aside.string()), error);
  TF_RETURN_IF_ERROR(WriteBundle((aside / kBundle).string(), state));
  error = SyncAll(aside.string());
  if (error) return Failed(absl::StrCat("cannot write ", aside.string()), error);
  const std::vector<std::string> older = Checkpoints(dir);
  fs::rename(aside, final, error);
  if (error) return Failed(absl::StrCat("cannot rename to ", final.string()), error);
  error = SyncFolder(dir);
  if (error) return Failed(absl::StrCat("cannot write ", dir), error);
  for (const std::string& path : older) fs::remove_all(path, error);
  return absl::OkStatus();
}

std::optional<std::string> LatestCheckpoint(const std::string& dir) {
  const std::vector<std::string> found = Checkpoints(dir);
  return found.empty() ? std::nullopt : std::optional<std::string>(found.back());
}

absl::StatusOr<CheckpointState> ReadCheckpoint(const std::string& path) {
  auto unreadable = [&](const auto&... why) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a readable checkpoint: ", path, ": ", why...));
  };
  const std::string bundle = (fs::path(path) / kBundle).string();
  if (!EndIsPlausible(bundle + ".index")) return unreadable("damage at the end of its index");
  tensorflow::BundleReader reader(tensorflow::Env::Default(), bundle);
  if (!reader.status().ok()) return unreadable(reader.status().message());
  std::map<std::string, Tensor> tensors;
  reader.Seek("");
  for (reader.Next(); reader.Valid(); reader.Next()) {
    const std::string key(reader.key());
    const absl::StatusOr<Tensor> tensor = ReadTensor(key, &reader);
    if (!tensor.ok()) return unreadable(key, ": ", tensor.status().message());
    tensors[key] = *tensor;
  }
  absl::StatusOr<CheckpointState> state = FromTensors(tensors);
  if (!state.ok()) return unreadable(state.status().message());
  if (state->format > kCheckpointFormat) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the checkpoint's format must be at most ", kCheckpointFormat,
        ", or a newer version of the program must read it. Received: format=", state->format,
        " in ", path));
  }
  return state;
}

absl::Status SameSettings(const CheckpointState& saved, const Settings& wanted) {
  const std::map<std::string, std::string> before(saved.settings.begin(), saved.settings.end());
  for (const auto& [name, value] : wanted) {
    const auto found = before.find(name);
    if (found == before.end() && saved.format < 2 && name == kTrainCharacters) continue;
    const std::string old = found == before.end() ? "(not there)" : found->second;
    if (old == value || (saved.format == 0 && old == InSixDigits(value))) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "`", name, "` must be ", old, ", as in the checkpoint. Received: ", name, "=", value));
  }
  const std::map<std::string, std::string> now(wanted.begin(), wanted.end());
  for (const auto& [name, value] : saved.settings) {
    if (now.count(name) > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("`", name, "` must be ", value, ", as in the checkpoint. Received: none"));
  }
  return absl::OkStatus();
}

}  // namespace late_phase
