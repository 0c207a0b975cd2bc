// Our side of tools/latephase bench enwik8: the training step of models/text/enwik8.h at the
// paper's size. The protocol and the arrays: tools/bench/bench_enwik8.py.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "models/text/enwik8.h"
#include "nlohmann/json.hpp"
#include "optimizers/session.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tools/program/command_line.h"
#include "tools/program/files.h"
#include "tools/program/session.h"

namespace late_phase {
namespace {

using Json = nlohmann::json;
using tensorflow::Tensor;

constexpr int64_t kUnits = 500, kTime = 100, kBatch = 128;

// FOLDER/NAME.npy, whose shape is known.
template <typename T>
std::vector<T> ReadArray(const std::string& folder, const std::string& name) {
  const std::string bytes = ReadFile(folder + "/" + name + ".npy");
  uint16_t header = 0;
  if (bytes.size() < 10) throw std::runtime_error(name + ".npy is too short");
  std::memcpy(&header, bytes.data() + 8, sizeof(header));
  const size_t begin = 10 + header;
  std::vector<T> values((bytes.size() - begin) / sizeof(T));
  std::memcpy(values.data(), bytes.data() + begin, values.size() * sizeof(T));
  return values;
}

// tokens [S,T+1,N] as a text that divides into the same minibatches: N streams of S·T + 1 bytes,
// and what the other splits need.
ByteText WriteText(const std::string& folder, int64_t* characters) {
  const std::vector<int32_t> tokens = ReadArray<int32_t>(folder, "tokens");
  const int64_t S = tokens.size() / ((kTime + 1) * kBatch), length = S * kTime + 1;
  *characters = kBatch * length;
  std::string bytes;
  for (int64_t n = 0; n < kBatch; ++n) {
    for (int64_t i = 0; i < length; ++i) {
      const int64_t s = std::min(i / kTime, S - 1), t = i - s * kTime;
      bytes.push_back(static_cast<char>(tokens[(s * (kTime + 1) + t) * kBatch + n]));
    }
  }
  bytes.resize(bytes.size() * 10 / 9 + 10, bytes[0]);
  const std::string path = folder + "/text." + std::to_string(getpid());
  WriteFile(path, bytes);
  ByteText text;
  const std::string complaint = text.Open(path, {*characters, 0, 0});
  std::filesystem::remove(path);  // it stays mapped
  if (!complaint.empty()) throw std::runtime_error(complaint);
  return text;
}

// A model with K members from the first step on, warm or not.
class Model {
 public:
  Model(const std::string& folder, int64_t K, int threads)
      : text_(WriteText(folder, &options_.limits.train_characters)) {
    options_.model = K > 1 ? "late-phase" : "rank1";
    options_.members = K;
    options_.units = kUnits;
    options_.t0 = 0;
    options_.sigma = 0;
    options_.swa_start = -1;
    task_ = Require(Enwik8::Create(options_, &text_));
    run_ = Require(task_->MakeRun(threads));
    Require(run_->Initialize());
    const std::pair<const char*, const char*> names[] = {{"embedding", "E"},
                                                         {"kernel", "W"},
                                                         {"recurrent_kernel", "R"},
                                                         {"bias", "b"},
                                                         {"softmax_kernel", "softmax_W"},
                                                         {"softmax_bias", "softmax_b"},
                                                         {"u", "u"},
                                                         {"v", "v"}};
    CharLstmOptions network;
    network.units = kUnits;
    std::map<std::string, Tensor> variables;
    for (const CharLstmWeight& weight : CharLstmWeights(network)) {
      for (const auto& [name, array] : names) {
        if (weight.name != name) continue;
        const std::vector<float> values = ReadArray<float>(folder, array);
        tensorflow::TensorShape shape = weight.shape;
        if (weight.late_phase) shape.InsertDim(0, K);
        Tensor tensor(tensorflow::DT_FLOAT, shape);
        for (int64_t i = 0; i < tensor.NumElements(); ++i) {
          tensor.flat<float>()(i) = values[i % values.size()];
        }
        variables[name] = tensor;
      }
    }
    Require(run_->Assign(variables));
  }

  // Seconds of one step, without the feeds: training prepares them on another thread.
  double Step() {
    const Run::Feeds feeds = Require(task_->Batch(run_->step()));
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<Tensor> outputs = Require(run_->Step(feeds, {task_->loss()}));
    const auto end = std::chrono::steady_clock::now();
    loss_ = outputs[0].scalar<float>()();
    return std::chrono::duration<double>(end - begin).count();
  }
  double loss() const { return loss_; }  // of the last step, before its update

 private:
  Enwik8Options options_;
  ByteText text_;
  std::unique_ptr<Enwik8> task_;
  std::unique_ptr<Run> run_;
  double loss_ = 0;
};

void Print(const Json& object) {
  std::printf("%s\n", object.dump().c_str());
  std::fflush(stdout);
}

int64_t ResidentBytes() {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

void Serve(const std::string& folder, int threads) {
  Model model(folder, 1, threads);
  Print({{"version", "C++ graph"}});
  std::string command;
  for (int64_t steps; std::cin >> command >> steps;) {
    std::vector<double> losses, seconds;
    for (int64_t i = 0; i < steps; ++i) {
      seconds.push_back(model.Step());
      losses.push_back(model.loss());
    }
    if (command == "check") {
      Print({{"losses", losses}});
    } else {
      Print({{"seconds", seconds}});
    }
  }
}

void Pairs(const std::string& folder, int threads, int64_t rounds) {
  std::vector<std::unique_ptr<Model>> models;
  for (int64_t K : {1, 1, 10}) models.push_back(std::make_unique<Model>(folder, K, threads));
  for (int warm = 0; warm < 3; ++warm) {
    for (const auto& model : models) model->Step();
  }
  Json all = Json::array();
  for (int64_t round = 0; round < rounds; ++round) {
    std::vector<double> seconds(models.size());
    for (size_t i = 0; i < models.size(); ++i) {
      const size_t which = (i + round) % models.size();
      seconds[which] = models[which]->Step();
    }
    all.push_back(seconds);
  }
  Print({{"rounds", all}});
}

void Memory(const std::string& folder, int threads, int64_t K) {
  {
    tensorflow::Scope scope = tensorflow::Scope::NewRootScope();
    const tensorflow::Output one = tensorflow::ops::Const(scope.WithOpName("one"), 1.0f);
    tensorflow::GraphDef graph;
    Require(scope.ToGraphDef(&graph));
    const std::unique_ptr<tensorflow::Session> session = Require(OpenSession(threads));
    Require(session->Create(graph));
    std::vector<Tensor> outputs;
    Require(session->Run({}, {one.name()}, {}, &outputs));
  }
  const int64_t start = ResidentBytes();
  Model model(folder, K, threads);
  for (int i = 0; i < 10; ++i) model.Step();
  Print({{"start_bytes", start}, {"bytes", ResidentBytes()}});
}

int Main(int argc, char** argv) {
  std::string folder;
  int threads = 1;
  int64_t pairs = 0, memory = 0;
  CLI::App app("Our side of the benchmark.", "tools/latephase bench enwik8");
  app.add_option("--arrays", folder)->required();
  app.add_option("--threads", threads);
  app.add_option("--pairs", pairs);
  app.add_option("--memory", memory);
  ParseCommandLine(argc, argv, &app);
  if (memory > 0) {
    Memory(folder, threads, memory);
  } else if (pairs > 0) {
    Pairs(folder, threads, pairs);
  } else {
    Serve(folder, threads);
  }
  return 0;
}

}  // namespace
}  // namespace late_phase

int main(int argc, char** argv) {
  return late_phase::RunProgram("tools/latephase bench enwik8",
                                [&] { return late_phase::Main(argc, argv); });
}
