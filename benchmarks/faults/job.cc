#include "benchmarks/faults/job.h"

#include <chrono>
#include <memory>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/optimizer/optimizer_options.h"

namespace gradientflow::faults {
namespace {

constexpr std::string_view kFabricNames[] = {"tcp", "shm", "mixed"};

class Trainer {
 public:
  Trainer(const JobConfig& job, int rank, RankReport* report)
      : job_(job), rank_(rank), report_(*report) {
    for (std::size_t elements : job.tensor_elements) {
      weights_.emplace_back(elements, 1.0F);
    }
    for (std::vector<float>& tensor : weights_) {
      weight_data_.push_back(tensor.data());
    }
  }

  Status Run() {
    report_.phase.store(Phase::kOpening);
    Result<std::unique_ptr<GradientSession>> opened =
        GradientSession::Open(OptionsOf(job_, rank_), TensorsOf(job_));
    if (!opened.ok()) return End(opened.status());
    std::unique_ptr<GradientSession> session = std::move(opened).value();
    for (std::uint64_t step = 0; step < job_.steps; ++step) {
      const Status status = Step(step, session.get());
      // The time of an error counts from here, not from the end of the
      // good-byes.
      if (!status.ok()) return End(status);
    }
    report_.phase.store(Phase::kClosing);
    session.reset();
    report_.phase.store(Phase::kClosed);
    return End(Status());
  }

 private:
  Status Step(std::uint64_t step, GradientSession* session) {
    Backward(job_, step, session, &report_);
    report_.phase.store(Phase::kFinishing);
    const Result<StepStats> stats = session->FinishStep();
    if (!stats.ok()) return stats.status();
    report_.wrong_sums.fetch_add(CountWrong(job_, step, *session));
    report_.phase.store(Phase::kOptimizer);
    OptimizerOptions sgd;
    GF_RETURN_IF_ERROR(session->OptimizerStep(sgd, weight_data_));
    report_.phase.store(Phase::kBetween);
    Pause(std::chrono::milliseconds(1));
    return Status();
  }

  Status End(const Status& status) {
    report_.End(NowNs(), status);
    return status;
  }

  const JobConfig& job_;
  const int rank_;
  RankReport& report_;
  std::vector<std::vector<float>> weights_;
  std::vector<float*> weight_data_;
};

}  // namespace

std::string_view Name(JobFabric fabric) {
  return kFabricNames[static_cast<std::size_t>(fabric)];
}

std::optional<JobFabric> ParseJobFabric(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kFabricNames); ++i) {
    if (kFabricNames[i] == name) return static_cast<JobFabric>(i);
  }
  return std::nullopt;
}

Options OptionsOf(const JobConfig& job, int rank) {
  Options options;
  options.rank = rank;
  options.size = job.ranks;
  options.rendezvous = job.rendezvous;
  options.job_token = job.job_token;
  options.socket_ifname = "lo";
  options.arena_bytes = std::size_t{1} << 30;
  options.bucket_bytes = job.bucket_bytes;
  options.wire_dtype = job.wire_dtype;
  options.reduce = ReduceOp::kSum;
  options.heartbeat_timeout_seconds = job.heartbeat_timeout_seconds;
  options.join_timeout_seconds = job.join_timeout_seconds;
  options.timeout_seconds = job.timeout_seconds;
  options.log_level = LogLevel::kError;
  switch (job.fabric) {
    case JobFabric::kTcp:
      options.fabric = "tcp";
      break;
    case JobFabric::kShm:
      options.fabric = "shm";
      break;
    case JobFabric::kMixed:
      options.host_id = rank == job.ranks - 1 ? "host-b" : "host-a";
      break;
  }
  return options;
}

std::vector<TensorSpec> TensorsOf(const JobConfig& job) {
  std::vector<TensorSpec> tensors;
  for (std::size_t elements : job.tensor_elements) {
    TensorSpec tensor;
    tensor.name = StrCat("layer", tensors.size());
    tensor.elements = elements;
    tensors.push_back(tensor);
  }
  return tensors;
}

float GradientOf(int rank, std::uint64_t step, std::size_t element) {
  return static_cast<float>(
      (element * 31 + step * 17 + static_cast<std::uint64_t>(rank) * 7) % 64);
}

float SumOf(int ranks, std::uint64_t step, std::size_t element) {
  float sum = 0;
  for (int r = 0; r < ranks; ++r) sum += GradientOf(r, step, element);
  return sum;
}

void Backward(const JobConfig& job, std::uint64_t step,
              GradientSession* session, RankReport* report) {
  report->handed_in.store(0);
  report->step.store(step);
  report->phase.store(Phase::kBackward);
  for (std::size_t i = job.tensor_elements.size(); i-- > 0;) {
    auto* values = reinterpret_cast<float*>(session->gradient(i).data);
    const std::size_t offset = session->pool_offset(i);
    for (std::size_t k = 0; k < job.tensor_elements[i]; ++k) {
      values[k] = GradientOf(session->rank(), step, offset + k);
    }
    report->handed_in.fetch_add(1);
    session->GradientReady(i);
  }
}

std::uint64_t CountWrong(const JobConfig& job, std::uint64_t step,
                         const GradientSession& session) {
  const auto* values = reinterpret_cast<const float*>(session.pool().data);
  const std::size_t elements = session.pool().bytes / sizeof(float);
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < elements; ++i) {
    wrong += values[i] != SumOf(job.ranks, step, i) ? 1 : 0;
  }
  return wrong;
}

Status Train(const JobConfig& job, int rank, RankReport* report) {
  return Trainer(job, rank, report).Run();
}

}  // namespace gradientflow::faults
