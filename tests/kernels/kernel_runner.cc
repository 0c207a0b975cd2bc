#include "tests/kernels/kernel_runner.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "kernels/op_kernel/gpu_device.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/device_factory.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"
#include "tensorflow/core/public/session_options.h"
#include "tensorflow/core/public/version.h"
#include "tests/cuda_harness/device_access.h"
#include "tests/cuda_harness/host_matmul.h"

namespace late_phase {
namespace test_util {

int64_t gpu_products = std::numeric_limits<int64_t>::max();

namespace {

using tensorflow::Tensor;

// Pages that can be read and written only while the device works. An array ends where its pages
// end, up to alignment, and a page beyond them that never can be touched follows.
class DeviceMemory : public tensorflow::Allocator {
 public:
  std::string Name() override { return "harness"; }

  void* AllocateRaw(size_t alignment, size_t bytes) override {
    const size_t page = sysconf(_SC_PAGESIZE), size = (bytes + page - 1) / page * page;
    char* begin = static_cast<char*>(
        mmap(nullptr, size + page, Protection(), MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (begin == MAP_FAILED) return nullptr;
    mprotect(begin + size, page, PROT_NONE);
    char* array = begin + (size - bytes) / alignment * alignment;
    regions_[array] = {begin, size, page};
    return array;
  }

  void DeallocateRaw(void* array) override {
    const Region region = regions_.at(array);
    munmap(region.begin, region.size + region.guard);
    regions_.erase(array);
  }

  // Calls nest.
  void SetReachable(bool reachable) {
    depth_ += reachable ? 1 : -1;
    if (depth_ > 1 || (depth_ == 1 && !reachable)) return;
    for (const auto& [array, region] : regions_) mprotect(region.begin, region.size, Protection());
  }

 private:
  struct Region {
    char* begin;
    size_t size, guard;
  };
  int Protection() const { return depth_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE; }

  int depth_ = 0;
  std::map<void*, Region> regions_;
};

class HarnessGpu : public tensorflow::DeviceBase {
 public:
  HarnessGpu() : DeviceBase(tensorflow::Env::Default()) {
    attributes_.set_name("/job:localhost/replica:0/task:0/device:GPU:0");
    attributes_.set_device_type("GPU");
  }
  tensorflow::Allocator* GetAllocator(tensorflow::AllocatorAttributes attributes) override {
    return attributes.on_host() ? tensorflow::cpu_allocator() : &memory;
  }
  const tensorflow::DeviceAttributes& attributes() const override { return attributes_; }
  const std::string& name() const override { return attributes_.name(); }

  DeviceMemory memory;

 private:
  tensorflow::DeviceAttributes attributes_;
};

// A tensor's values in memory of another allocator. Both must be within reach.
Tensor CopyTo(tensorflow::Allocator* allocator, const Tensor& from) {
  Tensor to(allocator, from.dtype(), from.shape());
  if (from.TotalBytes() > 0) std::memcpy(to.data(), from.data(), from.TotalBytes());
  return to;
}

// A device whose arrays `memory` makes.
struct Place {
  tensorflow::DeviceBase* device;
  tensorflow::Allocator* memory;
  std::string type;
};

absl::StatusOr<std::unique_ptr<tensorflow::OpKernel>> MakeKernel(const Place& place,
                                                                 const KernelCall& call) {
  tensorflow::NodeDefBuilder builder("call", call.op);
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const KernelInput& input = call.inputs[i];
    builder.Input("input", i, input.is_variable ? tensorflow::DT_RESOURCE : input.value.dtype());
  }
  for (const auto& [name, value] : call.attrs) builder.Attr(name, value);
  tensorflow::NodeDef node;
  TF_RETURN_IF_ERROR(builder.Finalize(&node));
  absl::Status status;
  std::unique_ptr<tensorflow::OpKernel> kernel =
      tensorflow::CreateOpKernel(tensorflow::DeviceType(place.type), place.device, place.memory,
                                 node, TF_GRAPH_DEF_VERSION, &status);
  TF_RETURN_IF_ERROR(status);
  return kernel;
}

// The inputs of a call where the kernel expects them, variables among them.
struct Inputs {
  tensorflow::ResourceMgr resources;
  std::vector<tensorflow::Var*> variables;
  std::vector<Tensor> tensors;  // of a variable, its handle
  std::vector<tensorflow::AllocatorAttributes> attributes;
};

absl::Status MakeInputs(const Place& place, const KernelCall& call,
                        const tensorflow::OpKernel& kernel, Inputs* inputs) {
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const Tensor& value = call.inputs[i].value;
    const bool on_host = kernel.input_memory_types()[i] == tensorflow::HOST_MEMORY;
    tensorflow::Allocator* memory = on_host ? tensorflow::cpu_allocator() : place.memory;
    inputs->attributes.emplace_back().set_on_host(on_host);
    if (!call.inputs[i].is_variable) {
      inputs->tensors.push_back(CopyTo(memory, value));
      continue;
    }
    auto* variable = new tensorflow::Var(value.dtype());
    *variable->tensor() = CopyTo(place.memory, value);
    variable->is_initialized = true;
    inputs->variables.push_back(variable);
    const std::string name = "variable" + std::to_string(i);
    TF_RETURN_IF_ERROR(inputs->resources.Create("harness", name, variable));
    Tensor handle(memory, tensorflow::DT_RESOURCE, {});
    handle.scalar<tensorflow::ResourceHandle>()() = tensorflow::MakeResourceHandle(
        "harness", name, *place.device, tensorflow::TypeIndex::Make<tensorflow::Var>());
    inputs->tensors.push_back(handle);
  }
  return absl::OkStatus();
}

// Fills outputs, variables and readers; an error of the kernel itself is the returned status.
absl::Status Compute(const Place& place, const KernelCall& call, KernelResult* result) {
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<tensorflow::OpKernel> kernel, MakeKernel(place, call));
  Inputs inputs;
  TF_RETURN_IF_ERROR(MakeInputs(place, call, *kernel, &inputs));
  if (call.with_readers) {
    for (tensorflow::Var* variable : inputs.variables) {
      result->readers.push_back(*variable->tensor());
    }
  }
  std::vector<tensorflow::TensorValue> values;
  for (Tensor& tensor : inputs.tensors) values.emplace_back(&tensor);
  std::vector<tensorflow::AllocatorAttributes> output_attributes;
  for (const tensorflow::MemoryType type : kernel->output_memory_types()) {
    output_attributes.emplace_back().set_on_host(type == tensorflow::HOST_MEMORY);
  }

  tensorflow::OpKernelContext::Params params;
  params.device = place.device;
  params.op_kernel = kernel.get();
  params.resource_manager = &inputs.resources;
  params.inputs = values;
  params.input_alloc_attrs = inputs.attributes;
  params.output_attr_array = output_attributes.data();
  tensorflow::OpKernelContext context(&params);
  cuda_harness::on_device_access(false);
  kernel->Compute(&context);
  cuda_harness::on_device_access(true);

  const auto to_host = [](const Tensor& tensor) {
    return CopyTo(tensorflow::cpu_allocator(), tensor);
  };
  for (int i = 0; i < kernel->num_outputs() && context.status().ok(); ++i) {
    result->outputs.push_back(to_host(*context.mutable_output(i)));
  }
  for (tensorflow::Var* variable : inputs.variables) {
    result->variables.push_back(to_host(*variable->tensor()));
  }
  for (Tensor& tensor : result->readers) tensor = to_host(tensor);
  return context.status();
}

KernelResult RunOn(const Place& place, const KernelCall& call) {
  KernelResult result;
  result.status = Compute(place, call, &result);
  return result;
}

}  // namespace

KernelInput Variable(const Tensor& value) {
  KernelInput input(value);
  input.is_variable = true;
  return input;
}

KernelResult RunKernel(const std::string& device_type, const KernelCall& call) {
  if (device_type == "GPU") {
    HarnessGpu gpu;
    cuda_harness::on_device_access = [&gpu](bool at_work) { gpu.memory.SetReachable(at_work); };
    cuda_harness::on_device_access(true);  // while inputs are made and results are read
    KernelResult result = RunOn({&gpu, &gpu.memory, device_type}, call);
    cuda_harness::on_device_access = [](bool) {};
    return result;
  }
  static tensorflow::Device* cpu =
      tensorflow::DeviceFactory::NewDevice("CPU", tensorflow::SessionOptions(),
                                           "/job:localhost/replica:0/task:0")
          .release();
  return RunOn({cpu, tensorflow::cpu_allocator(), device_type}, call);
}

}  // namespace test_util

// What kernels/op_kernel/gpu_stream.cc is in the library.
GpuStream GetGpuStream(tensorflow::OpKernelContext*) {
  return {nullptr, std::make_unique<cuda_harness::HostMatmul>(test_util::gpu_products)};
}

}  // namespace late_phase
