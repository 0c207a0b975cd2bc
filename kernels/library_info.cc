// The only symbols that the op library exports: what it is, for loaders and for people.
#include <cstdio>
#include <string>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/cpu_target.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/runtime.h"
#include "kernels/version.h"

namespace {

// All of this runs once, when the library is loaded: before a program that links it can have used
// oneDNN.
const late_phase::Amx amx = late_phase::AskAmx();
const bool kept_from_amx = late_phase::KeepOneDnnFromAmx(amx);
[[maybe_unused]] const bool warned = [] {
  const late_phase::CudaVersions versions = late_phase::AskCudaVersions();
  const std::string warning = late_phase::DriverWarning(versions.toolkit, versions.driver);
  if (!warning.empty()) std::fprintf(stderr, "%s\n", warning.c_str());
  return !warning.empty();
}();

}  // namespace

extern "C" {

// Python's loader finds this text in the file before it loads it: TensorFlow's C++ interface
// changes with every release, and a library built for another release fails with an undefined
// symbol, or later and worse.
extern const char late_phase_build_info[];  // without this a constant is not exported
const char late_phase_build_info[] = "late_phase-build-info version=" LATE_PHASE_VERSION
                                     " tensorflow=" LATE_PHASE_TENSORFLOW_VERSION " ";

// The value that this library has set oneDNN's variable to, because the machine refuses AMX;
// nullptr if it has not.
const char* late_phase_onednn_limit() {
  return kept_from_amx ? late_phase::kOneDnnWithoutAmx : nullptr;
}

// One "key: value" line per fact about the library and the machine it runs on. The text lives as
// long as the process.
const char* late_phase_describe() {
  static const std::string* text = [] {
    const late_phase::CudaReport cuda = late_phase::AskCuda();
    std::string gpu = "none usable";
    if (cuda.devices > 0) {
      gpu = std::to_string(cuda.devices) +
            (cuda.has_code ? ", supported" : ", not of an architecture this library was built for");
    }
    return new std::string(
        "late_phase: " LATE_PHASE_VERSION
        "\n"
        "TensorFlow: " LATE_PHASE_TENSORFLOW_VERSION
        "\n"
        "compiler: " __VERSION__
        "\n"
        "CPU kernels: " +
        std::string(late_phase::CpuTargetName(late_phase::ChosenCpuTarget())) +
        "\nAMX: " + late_phase::AmxText(amx) + "\nCUDA toolkit: " +
        late_phase::CudaVersionText(cuda.versions.toolkit) + "\nCUDA driver: " +
        (cuda.versions.driver == 0 ? "none" : late_phase::CudaVersionText(cuda.versions.driver)) +
        "\nGPUs: " + gpu + "\n");
  }();
  return text->c_str();
}

}  // extern "C"
