#include "optimizers/workers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ops/worker_sum.h"
#include "optimizers/tensors.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/core/distributed_runtime/server_lib.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"
#include "tensorflow/core/protobuf/tensorflow_server.pb.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;
using tensorflow::Tensor;

namespace {

constexpr char kJob[] = "worker";

// Sums between steps are made on the CPU, those of graphs wherever the graph is.
constexpr int32_t kGroupBetweenSteps = 1, kGroupInGraphs = 2;
constexpr int32_t kFirstInGraphs = 1;

// Numbers that are summed at a time between steps: 2^22, 32 MB. TensorFlow wants a sum to have the
// same size whenever it is made, so there is one for each power of two, which is filled up.
constexpr int32_t kLargestPower = 22;

// Which power of two holds n numbers. REQUIRES: n <= 2^kLargestPower.
int32_t PowerFor(size_t n) {
  int32_t power = 0;
  while (size_t{1} << power < n) ++power;
  return power;
}

// The sum of 2^power numbers, of one type or the other.
int32_t KeyFor(tensorflow::DataType dtype, int32_t power) {
  return 1 + power + (dtype == tensorflow::DT_INT64 ? 0 : kLargestPower + 1);
}

// Ops as in any session (optimizers/session.cc), and what sums need.
tensorflow::ConfigProto Config(const WorkerGroup& group, int threads) {
  tensorflow::ConfigProto config;
  config.set_intra_op_parallelism_threads(threads);
  // One op at a time. A server's pool belongs to the process.
  config.set_inter_op_parallelism_threads(1);
  config.set_allow_soft_placement(true);
  config.mutable_experimental()->set_collective_group_leader(
      absl::StrCat("/job:", kJob, "/replica:0/task:0"));
  config.set_operation_timeout_in_ms(static_cast<int64_t>(group.patience * 1000));
  return config;
}

tensorflow::ServerDef Definition(const WorkerGroup& group, int threads) {
  tensorflow::ServerDef definition;
  definition.set_protocol("grpc");
  definition.set_job_name(kJob);
  definition.set_task_index(static_cast<int>(group.task));
  tensorflow::JobDef* job = definition.mutable_cluster()->add_job();
  job->set_name(kJob);
  for (size_t i = 0; i < group.addresses.size(); ++i) {
    (*job->mutable_tasks())[static_cast<int>(i)] = group.addresses[i];
  }
  *definition.mutable_default_session_config() = Config(group, threads);
  return definition;
}

// The nodes of the sums between steps, for a type.
struct Names {
  const char *numbers, *key, *sum;
};
Names NamesFor(tensorflow::DataType dtype) {
  if (dtype == tensorflow::DT_INT64) return {"integers", "key_of_integers", "sum_of_integers"};
  return {"reals", "key_of_reals", "sum_of_reals"};
}

template <typename T>
absl::Status SumPieces(absl::Span<T> numbers, tensorflow::Session* session) {
  const tensorflow::DataType dtype = tensorflow::DataTypeToEnum<T>::value;
  const Names names = NamesFor(dtype);
  constexpr size_t kPiece = size_t{1} << kLargestPower;
  for (size_t begin = 0; begin < numbers.size(); begin += kPiece) {
    const absl::Span<T> piece = numbers.subspan(begin, kPiece);
    const int32_t power = PowerFor(piece.size());
    Tensor tensor = Zeros(dtype, {int64_t{1} << power}), key(tensorflow::DT_INT32, {});
    std::copy(piece.begin(), piece.end(), tensor.flat<T>().data());
    key.scalar<int32_t>()() = KeyFor(dtype, power);
    std::vector<Tensor> sums;
    TF_RETURN_IF_ERROR(
        session->Run({{names.numbers, tensor}, {names.key, key}}, {names.sum}, {}, &sums));
    std::copy_n(sums[0].flat<T>().data(), piece.size(), piece.begin());
  }
  return absl::OkStatus();
}

}  // namespace

Workers::~Workers() = default;

absl::StatusOr<std::unique_ptr<Workers>> Workers::Open(const WorkerGroup& group, int threads) {
  if (const std::string complaint = group.Check(); !complaint.empty()) {
    return absl::InvalidArgumentError(complaint);
  }
  std::unique_ptr<Workers> workers(new Workers(group, threads));
  std::unique_ptr<tensorflow::ServerInterface> server;
  const absl::Status opened = tensorflow::NewServer(Definition(group, threads), &server);
  if (!opened.ok()) {
    return absl::UnavailableError(absl::StrCat("cannot listen at ", group.addresses[group.task],
                                               ", the address of task ", group.task,
                                               ", whose port must be free: ", opened.message()));
  }
  TF_RETURN_IF_ERROR(server->Start());
  workers->target_ = server->target();
  // TensorFlow's servers cannot be stopped.
  (void)server.release();
  TF_RETURN_IF_ERROR(workers->OpenConversation());
  return workers;
}

absl::StatusOr<std::unique_ptr<tensorflow::Session>> Workers::OpenSession() {
  tensorflow::SessionOptions options;
  options.target = target_;
  options.config = Config(group_, threads_);
  options.config.add_device_filters(absl::StrCat("/job:", kJob, "/task:", group_.task));
  std::unique_ptr<tensorflow::Session> session(tensorflow::NewSession(options));
  if (session == nullptr) return absl::InternalError("TensorFlow cannot open a session");
  return session;
}

absl::Status Workers::OpenConversation() {
  const tensorflow::Scope host = tensorflow::Scope::NewRootScope().WithDevice("/device:CPU:0");
  const auto workers = tf_ops::Const(host, static_cast<int32_t>(share().workers)),
             between_steps = tf_ops::Const(host, kGroupBetweenSteps);
  for (const tensorflow::DataType dtype : {tensorflow::DT_INT64, tensorflow::DT_DOUBLE}) {
    const Names names = NamesFor(dtype);
    const auto numbers = tf_ops::Placeholder(host.WithOpName(names.numbers), dtype),
               key = tf_ops::Placeholder(host.WithOpName(names.key), tensorflow::DT_INT32);
    ops::WorkerSum(host.WithOpName(names.sum), numbers, workers, between_steps, key);
  }
  tensorflow::GraphDef graph;
  TF_RETURN_IF_ERROR(host.ToGraphDef(&graph));
  TF_ASSIGN_OR_RETURN(conversation_, OpenSession());
  return conversation_->Create(graph);
}

absl::Status Workers::Explain(const absl::Status& status) const {
  // A worker that is gone shows as a broken connection or as no answer, and what was going on is
  // then aborted or cancelled.
  const bool lost = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
                    absl::IsAborted(status) || absl::IsCancelled(status) ||
                    absl::StrContains(status.message(), "Collective ops is aborted");
  if (!lost) return status;
  // Of TensorFlow's text, the line that says what happened.
  constexpr absl::string_view kBefore = "Collective ops is aborted by: ";
  absl::string_view text = status.message();
  if (const size_t at = text.find(kBefore); at != text.npos) {
    text.remove_prefix(at + kBefore.size());
  }
  return absl::AbortedError(
      absl::StrCat("the other workers no longer answer: ", text.substr(0, text.find('\n'))));
}

Output Workers::Sum(const tensorflow::Scope& scope, Output value) {
  // Two keys: the gradient of a sum takes the one after its own.
  const int32_t key = kFirstInGraphs + 2 * sums_++;
  return ops::WorkerSum(scope, value, {static_cast<int32_t>(share().workers), kGroupInGraphs, key});
}

absl::Status Workers::Sum(absl::Span<int64_t> numbers) {
  return Explain(SumPieces(numbers, conversation_.get()));
}

absl::Status Workers::Sum(absl::Span<double> numbers) {
  return Explain(SumPieces(numbers, conversation_.get()));
}

void Workers::Part() {
  int64_t nothing = 0;
  Sum(absl::MakeSpan(&nothing, 1)).IgnoreError();
}

absl::StatusOr<std::vector<std::string>> Workers::Gather(const std::string& text) {
  std::vector<int64_t> sizes(share().workers);
  sizes[share().task] = static_cast<int64_t>(text.size());
  TF_RETURN_IF_ERROR(Sum(absl::MakeSpan(sizes)));
  // Each text in words of its own, which are zero on the other workers.
  auto words = [](int64_t bytes) { return (bytes + 7) / 8; };
  int64_t all = 0;
  for (const int64_t size : sizes) all += words(size);
  std::vector<int64_t> numbers(all);
  int64_t own = 0;
  for (int64_t i = 0; i < share().task; ++i) own += words(sizes[i]);
  std::memcpy(numbers.data() + own, text.data(), text.size());
  TF_RETURN_IF_ERROR(Sum(absl::MakeSpan(numbers)));
  std::vector<std::string> texts;
  const int64_t* begin = numbers.data();
  for (const int64_t size : sizes) {
    texts.emplace_back(reinterpret_cast<const char*>(begin), size);
    begin += words(size);
  }
  return texts;
}

absl::Status Workers::OfFirst(const absl::Status& status) {
  TF_ASSIGN_OR_RETURN(const std::string text, Broadcast(std::string(status.message())));
  int64_t code = first() ? static_cast<int64_t>(status.raw_code()) : 0;
  TF_RETURN_IF_ERROR(Sum(absl::MakeSpan(&code, 1)));
  return absl::Status(static_cast<absl::StatusCode>(code), text);
}

absl::StatusOr<std::string> Workers::Broadcast(const std::string& text) {
  TF_ASSIGN_OR_RETURN(std::vector<std::string> texts, Gather(first() ? text : ""));
  return std::move(texts[0]);
}

}  // namespace late_phase
