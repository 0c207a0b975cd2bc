#include "tools/program/session.h"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "optimizers/session.h"
#include "tensorflow/core/framework/device_attributes.pb.h"
#include "tools/program/command_line.h"

namespace late_phase {

void Require(const absl::Status& status) {
  if (status.ok()) return;
  const std::string text(status.message());
  if (absl::IsInvalidArgument(status) || absl::IsNotFound(status)) throw UsageError(text);
  if (absl::IsAborted(status)) {  // by the loss of other workers (optimizers/workers.h)
    throw std::runtime_error(
        text +
        ". Nothing has been saved since the last checkpoint. To resume from it, start every worker "
        "again with --resume.");
  }
  throw std::runtime_error(text);
}

SessionFlags::SessionFlags() : threads(std::max(1u, std::thread::hardware_concurrency())) {}

void AddSessionFlags(SessionFlags* flags, CLI::App* app) {
  app->add_option("--device", flags->device, "CPU:0, GPU:0, …; default: a GPU if there is one");
  app->add_option("--threads", flags->threads,
                  "CPU threads within ops; their number affects results through rounding only; "
                  "default: all cores")
      ->check(CLI::Range(1, 1024));
}

void ChooseDevice(SessionFlags* flags) {
  const std::unique_ptr<tensorflow::Session> session =
      Require(OpenSession(static_cast<int>(flags->threads)));
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

}  // namespace late_phase
