// A C++ graph of a rank-1 LSTM with all its gradients, fed with a test problem. Shared by the graph
// tests of the family.
#ifndef LATE_PHASE_TESTS_OPS_RANK1_LSTM_GRAPH_H_
#define LATE_PHASE_TESTS_OPS_RANK1_LSTM_GRAPH_H_

#include <map>
#include <string>
#include <vector>

#include "ops/rank1_lstm.h"
#include "tensorflow/cc/framework/gradients.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/core/platform/errors.h"
#include "tests/support/graph_runner.h"
#include "tests/support/rank1_lstm_cases.h"

namespace late_phase {
namespace test_util {

// The inputs of the op by name, the member's rows of u and v inside stacks of K whose other rows
// are 99.
template <typename T>
std::map<std::string, tensorflow::Tensor> LstmTensors(const LstmProblem& p, int64_t K,
                                                      int32_t member) {
  const auto& in = p.inputs;
  const int64_t Z = 4 * in.H;
  auto stack = [&](const reference::Values& row) {
    reference::Values rows(K * row.size(), 99.0);
    if (member >= 0 && member < K) {
      std::copy(row.begin(), row.end(), rows.begin() + member * row.size());
    }
    return MakeTensor<T>({K, static_cast<int64_t>(row.size())}, rows);
  };
  std::map<std::string, tensorflow::Tensor> tensors = {
      {"initial_h", MakeTensor<T>({in.N, in.H}, in.initial_h)},
      {"initial_c", MakeTensor<T>({in.N, in.H}, in.initial_c)},
      {"recurrent_kernel", MakeTensor<T>({in.H, Z}, in.recurrent_kernel)},
      {"u", stack(in.u)},
      {"v", stack(in.v)},
      {"member", MakeTensor<int32_t>({}, std::vector<int32_t>{member})},
  };
  if (!p.token_form) {
    tensors["x"] = MakeTensor<T>({in.T, in.N, in.C}, in.x);
    tensors["kernel"] = MakeTensor<T>({in.C, Z}, in.kernel);
    tensors["bias"] = MakeTensor<T>({Z}, in.bias);
  } else {
    tensors["tokens"] = MakeTensor<int32_t>({in.T, in.N}, p.tokens);
    tensors["table"] = MakeTensor<T>({in.C, Z}, in.kernel);
  }
  return tensors;
}

// Placeholders of unknown shape for the given tensors: only the kernels' own checks see the shapes.
struct LstmGraph {
  explicit LstmGraph(const std::map<std::string, tensorflow::Tensor>& tensors,
                     bool is_training = true)
      : scope(tensorflow::Scope::NewRootScope()) {
    for (const auto& [name, tensor] : tensors) {
      inputs[name] = tensorflow::ops::Placeholder(scope.WithOpName(name), tensor.dtype());
      feeds.push_back({name, tensor});
    }
    auto& in = inputs;
    const ops::Rank1LstmAttrs attrs{is_training};
    if (tensors.count("tokens") == 0) {
      ops::Rank1Lstm lstm(scope, in["x"], in["initial_h"], in["initial_c"], in["kernel"],
                          in["recurrent_kernel"], in["bias"], in["u"], in["v"], in["member"],
                          attrs);
      outputs = {lstm.h, lstm.final_h, lstm.final_c, lstm.gates, lstm.cells};
    } else {
      ops::Rank1LstmTokens lstm(scope, in["tokens"], in["table"], in["initial_h"], in["initial_c"],
                                in["recurrent_kernel"], in["u"], in["v"], in["member"], attrs);
      outputs = {lstm.h, lstm.final_h, lstm.final_c, lstm.gates, lstm.cells};
    }
  }

  // Adds the gradient of every differentiable input, named "d" + its name.
  template <typename T>
  [[nodiscard]] absl::Status AddGradients(const LstmProblem& p) {
    const auto& in = p.inputs;
    const std::vector<tensorflow::Tensor> dout = {MakeTensor<T>({in.T, in.N, in.H}, p.dout.h),
                                                  MakeTensor<T>({in.N, in.H}, p.dout.final_h),
                                                  MakeTensor<T>({in.N, in.H}, p.dout.final_c)};
    std::vector<tensorflow::Output> given, wanted, grads;
    for (int i = 0; i < 3; ++i) {
      const std::string name = "dout" + std::to_string(i);
      given.push_back(tensorflow::ops::Placeholder(scope.WithOpName(name), dout[i].dtype()));
      feeds.push_back({name, dout[i]});
    }
    for (const auto& [name, input] : inputs) {
      if (name == "member" || name == "tokens") continue;
      wanted.push_back(input);
      names.push_back("d" + name);
    }
    absl::Status status = tensorflow::AddSymbolicGradients(
        scope, {outputs[0], outputs[1], outputs[2]}, wanted, given, &grads);
    gradients = grads;
    return status;
  }

  // Runs forward and, if added, backward. Results by name.
  [[nodiscard]] absl::Status Run(std::map<std::string, tensorflow::Tensor>* results) const {
    std::vector<tensorflow::Output> fetches = outputs;
    std::vector<std::string> fetched = {"h", "final_h", "final_c", "gates", "cells"};
    fetches.insert(fetches.end(), gradients.begin(), gradients.end());
    fetched.insert(fetched.end(), names.begin(), names.end());
    std::vector<tensorflow::Tensor> tensors;
    TF_RETURN_IF_ERROR(RunGraph(scope, feeds, fetches, &tensors));
    for (size_t i = 0; i < fetched.size(); ++i) (*results)[fetched[i]] = tensors[i];
    return absl::OkStatus();
  }

  tensorflow::Scope scope;
  std::map<std::string, tensorflow::Output> inputs;
  std::vector<tensorflow::Output> outputs, gradients;
  std::vector<std::string> names;
  Feeds feeds;
};

}  // namespace test_util
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_OPS_RANK1_LSTM_GRAPH_H_
