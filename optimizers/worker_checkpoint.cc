#include "optimizers/worker_checkpoint.h"

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {

using tensorflow::Tensor;
using tensorflow::TensorShape;

absl::StatusOr<CheckpointState> FirstState(const CheckpointState& state, Workers* workers) {
  const std::map<std::string, Tensor> own =
      workers->first() ? ToTensors(state) : std::map<std::string, Tensor>();
  TF_ASSIGN_OR_RETURN(
      const std::string keys,
      workers->Broadcast(absl::StrJoin(
          own, "\n", [](std::string* text, const auto& entry) { text->append(entry.first); })));
  std::map<std::string, Tensor> tensors;
  // One at a time: each is in memory several times while it is passed on.
  for (const absl::string_view part : absl::StrSplit(keys, '\n')) {
    const std::string key(part);
    tensorflow::TensorProto proto;
    if (workers->first()) own.at(key).AsProtoTensorContent(&proto);
    TF_ASSIGN_OR_RETURN(const std::string bytes, workers->Broadcast(proto.SerializeAsString()));
    if (!proto.ParseFromString(bytes) || !tensors[key].FromProto(proto)) {
      return absl::InternalError(absl::StrCat("`", key, "` was not received as a tensor"));
    }
  }
  return FromTensors(tensors);
}

absl::StatusOr<Tensor> JoinRows(const Tensor& own, Workers* workers) {
  TF_ASSIGN_OR_RETURN(const std::vector<std::string> parts,
                      workers->Gather(std::string(own.tensor_data())));
  TensorShape shape = own.shape();
  shape.set_dim(0, own.dim_size(0) * workers->share().workers);
  Tensor joint(own.dtype(), shape);
  char* end = static_cast<char*>(joint.data());
  for (const std::string& part : parts) {
    std::memcpy(end, part.data(), part.size());
    end += part.size();
  }
  return joint;
}

Tensor OwnRows(const Tensor& joint, const Share& share) {
  const int64_t rows = joint.dim_size(0), begin = share.Begin(rows);
  // A copy: slices are not aligned in memory.
  return tensorflow::tensor::DeepCopy(joint.Slice(begin, begin + share.Size(rows)));
}

}  // namespace late_phase
