#include "tests/faults/job.h"

#include <chrono>
#include <memory>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/optimizer/optimizer_options.h"

namespace gradientflow::faults {
namespace {

// Small integers, so that sums are exact in every order and in float16.
float GradientOf(int rank, std::uint64_t step, std::size_t element) {
  return static_cast<float>(
      (element * 31 + step * 17 + static_cast<std::uint64_t>(rank) * 7) % 64);
}

Status Step(const JobConfig& job, std::uint64_t step, GradientSession* session,
            const std::vector<float*>& weights, RankReport* report) {
  Backward(job, step, session, report);
  report->phase.store(Phase::kFinishing);
  GF_RETURN_IF_ERROR(session->FinishStep().status());
  report->wrong_sums.fetch_add(CountWrong(job, step, *session));
  report->phase.store(Phase::kOptimizer);
  GF_RETURN_IF_ERROR(session->OptimizerStep(OptimizerOptions(), weights));
  report->phase.store(Phase::kBetween);
  Pause(std::chrono::milliseconds(1));
  return Status();
}

}  // namespace

JobConfig::JobConfig() {
  options.job_token = "faults";
  options.socket_ifname = "lo";
  options.arena_bytes = std::size_t{1} << 30;
  options.bucket_bytes = std::size_t{64} << 10;
  options.wire_dtype = DType::kFloat32;
  options.reduce = ReduceOp::kSum;
  options.heartbeat_timeout_seconds = 1.5;
  options.join_timeout_seconds = 2;
  options.timeout_seconds = 60;
  options.log_level = LogLevel::kError;
}

Options OptionsOf(const JobConfig& job, int rank) {
  Options options = job.options;
  options.rank = rank;
  options.size = job.ranks;
  if (job.fabric != "mixed") {
    options.fabric = job.fabric;
  } else {
    options.host_id = rank == job.ranks - 1 ? "host-b" : "host-a";
  }
  return options;
}

std::vector<TensorSpec> TensorsOf(const JobConfig& job) {
  std::vector<TensorSpec> tensors;
  for (std::size_t elements : job.tensor_elements) {
    tensors.push_back({StrCat("layer", tensors.size()), elements});
  }
  return tensors;
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
  std::uint64_t wrong = 0;
  for (std::size_t t = 0; t < session.tensors(); ++t) {
    const BufferView view = session.gradient(t);
    const auto* values = reinterpret_cast<const float*>(view.data);
    const std::size_t offset = session.pool_offset(t);
    for (std::size_t i = 0; i < view.bytes / sizeof(float); ++i) {
      float sum = 0;
      for (int r = 0; r < job.ranks; ++r) {
        sum += GradientOf(r, step, offset + i);
      }
      wrong += values[i] != sum ? 1 : 0;
    }
  }
  return wrong;
}

Status Train(const JobConfig& job, int rank, RankReport* report) {
  // The time of an error counts from here, not from the end of the good-byes.
  const auto end = [report](const Status& status) {
    report->End(NowNs(), status);
    return status;
  };
  std::vector<std::vector<float>> weights;
  std::vector<float*> pointers;
  for (const std::size_t elements : job.tensor_elements) {
    weights.emplace_back(elements, 1.0F);
    pointers.push_back(weights.back().data());
  }
  report->phase.store(Phase::kOpening);
  auto session = GradientSession::Open(OptionsOf(job, rank), TensorsOf(job));
  if (!session.ok()) return end(session.status());
  for (std::uint64_t step = 0; step < job.steps; ++step) {
    const Status status =
        Step(job, step, session.value().get(), pointers, report);
    if (!status.ok()) return end(status);
  }
  report->phase.store(Phase::kClosing);
  session.value().reset();
  report->phase.store(Phase::kClosed);
  return end(Status());
}

}  // namespace gradientflow::faults
