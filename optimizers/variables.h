// The variables of a graph: each is declared once, and known to checkpoints by its name.
#ifndef LATE_PHASE_OPTIMIZERS_VARIABLES_H_
#define LATE_PHASE_OPTIMIZERS_VARIABLES_H_

#include <string>
#include <vector>

#include "optimizers/initial_value.h"
#include "optimizers/worker_group.h"
#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"

namespace late_phase {

// The role of a variable in the run, and so whether it is taken over when another run starts from
// this one's weights.
enum class VariableKind {
  kModel,     // a base weight, or a state of StateKind::kModel
  kMembers,   // the same with a row per member
  kState,     // of StateKind::kRun
  kConstant,  // of StateKind::kConstant
  kInternal   // not declared by the model: slots, sums, averages and counters
};

// A variable as checkpoints see it: the node that reads it, and the placeholder and target that
// restore it. Initial values other than zero are also set through these.
struct SavedVariable {
  std::string name, read, placeholder, restore;
  tensorflow::DataType dtype;
  tensorflow::TensorShape shape;
  VariableKind kind;
  InitialValue::Make initial;  // empty: an operation of Variables::zeros sets it
  // Its shape in a checkpoint: more rows than here if every worker has a share of them.
  tensorflow::TensorShape joint_shape;
};

class Variables {
 public:
  Variables(const tensorflow::Scope& scope, const tensorflow::Scope& host)
      : scope_(scope), host_(host) {}

  // Each returns the handle; errors end in the scope's status.
  tensorflow::Output Declare(const std::string& name, const InitialValue& initial,
                             VariableKind kind);
  tensorflow::Output DeclareZero(const std::string& name, tensorflow::DataType dtype,
                                 const tensorflow::TensorShape& shape);
  // A state of `joint_shape` that starts at zero, and of which this worker has its share of the
  // rows.
  tensorflow::Output DeclareShare(const std::string& name, tensorflow::DataType dtype,
                                  const tensorflow::TensorShape& joint_shape, const Share& share);
  tensorflow::Output DeclareCounter(const std::string& name);  // int64 [], on the host

  const std::vector<SavedVariable>& saved() const { return saved_; }  // in the order of declaration
  // Set the variables that start at zero.
  const std::vector<tensorflow::Operation>& zeros() const { return zeros_; }

 private:
  tensorflow::Output Declare(const tensorflow::Scope& scope, const std::string& name,
                             const InitialValue& initial, VariableKind kind);

  tensorflow::Scope scope_, host_;
  std::vector<SavedVariable> saved_;
  std::vector<tensorflow::Operation> zeros_;
};

// Zeros that are made on demand: a constant would stay in the graph.
tensorflow::Output ZerosInGraph(const tensorflow::Scope& scope, tensorflow::DataType dtype,
                                const tensorflow::TensorShape& shape);

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_VARIABLES_H_
