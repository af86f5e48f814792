#include "benchmarks/scaling/cell.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

#include "benchmarks/scaling/gemm_backward.h"
#include "benchmarks/scaling/gpu.h"
#include "benchmarks/scaling/gradients.h"
#include "benchmarks/scaling/oracle.h"
#include "benchmarks/scaling/replay.h"
#include "benchmarks/scaling/table.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/device/cuda_device.h"
#include "gradientflow/session.h"

namespace gradientflow::benchmarks {
namespace {

// For every rank to get from the start signal to its clock.
constexpr Clock::Time kRunUp = std::chrono::milliseconds(2);
constexpr int kRunsAlone = 5;

// One mode's session with what belongs to it.
class ModeRun {
 public:
  ModeRun(const Cell& cell, const Mode& mode, Waiter& waiter)
      : model_(cell.model),
        mode_(mode),
        gradients_(mode.dtype),
        waiter_(waiter) {}

  // `gpu`: null before the first pool on a device, which makes it.
  Status Open(Options options, std::unique_ptr<Gpu>* gpu);
  Result<StepSample> Step();
  // kDataLoss unless every rank has seen the same bits.
  Status CheckSameBits();

 private:
  Status At(const Status& status) const {
    return Status(status.code(), StrCat(model_.name, ", mode ", mode_.name,
                                        ": ", status.message()));
  }
  Status MakeBackward(const Options& options, std::unique_ptr<Gpu>* gpu);
  // Fills in alone_seconds_ and rest_seconds_.
  Status MeasureAlone();
  // A moment a little ahead, the same on every rank.
  Result<Clock::Time> AgreeOnStart();
  Status Barrier();
  Result<StepSample> Timed();

  const Model& model_;
  const Mode& mode_;
  const Gradients gradients_;
  Waiter& waiter_;
  std::unique_ptr<GradientSession> session_;
  std::unique_ptr<Backward> backward_;
  std::unique_ptr<Oracle> oracle_;
  double alone_seconds_ = 0;  // Of backward, without communication.
  double rest_seconds_ = 0;   // Forward and update.
  std::uint64_t step_ = 0;
};

Status ModeRun::Open(Options options, std::unique_ptr<Gpu>* gpu) {
  mode_.Apply(options);
  options.job_token = StrCat("scaling ", model_.name, " ", mode_.name);
  std::vector<TensorSpec> specs;
  for (const ModelTensor& tensor : model_.tensors) {
    specs.push_back(TensorSpec{tensor.name, tensor.elements, false});
  }
  auto session = GradientSession::Open(options, specs);
  if (!session.ok()) return At(session.status());
  session_ = std::move(session).value();
  Oracle::Pool pool;
  pool.elements = model_.elements();
  pool.dtype = mode_.dtype;
  pool.ranks = session_->size();
  pool.chunk_elements = session_->options().chunk_elements;
  pool.momentum = session_->options().momentum;
  oracle_ = std::make_unique<Oracle>(gradients_, pool);
  const Status made = MakeBackward(options, gpu);
  if (!made.ok()) return At(made);
  const Status measured = MeasureAlone();
  return measured.ok() ? measured : At(measured);
}

Status ModeRun::MakeBackward(const Options& options,
                             std::unique_ptr<Gpu>* gpu) {
  const BufferView pool = session_->pool();
  if (pool.device.kind == DeviceId::Kind::kCpu) {
    if (options.device != "cpu") {
      return Status(StatusCode::kInternal,
                    StrCat("device ", options.device,
                           ": the session's pool is in the host's memory"));
    }
    backward_ = std::make_unique<ReplayBackward>(
        ReplayParts{&model_, &gradients_, &waiter_, pool, session_->rank()});
    return Status();
  }
  if (*gpu == nullptr) {
    auto device = OpenCudaDevice(pool.device.index);
    if (!device.ok()) return device.status();
    auto made = Gpu::Create(std::move(device).value(), &OpenCublas);
    if (!made.ok()) return made.status();
    *gpu = std::move(made).value();
  }
  GF_RETURN_IF_ERROR(session_->SetStream((*gpu)->stream().native()));
  GemmBackwardParts parts;
  parts.model = &model_;
  parts.gradients = &gradients_;
  parts.waiter = &waiter_;
  parts.gpu = gpu->get();
  parts.pool = pool;
  parts.element_bytes = SizeOf(mode_.dtype);
  for (std::size_t i = 0; i < session_->tensors(); ++i) {
    parts.offsets.push_back(session_->pool_offset(i) * parts.element_bytes);
  }
  parts.rank = session_->rank();
  auto made = GemmBackward::Create(parts);
  if (!made.ok()) return made.status();
  backward_ = std::move(made).value();
  return Status();
}

Status ModeRun::MeasureAlone() {
  rest_seconds_ = model_.rest_seconds;
  if (const auto known = backward_->seconds_alone()) {
    alone_seconds_ = *known;
    return Status();
  }
  GF_RETURN_IF_ERROR(backward_->Prepare(0));
  std::vector<double> seconds;
  for (int run = -2; run < kRunsAlone; ++run) {  // Two warm up.
    // All ranks at once, which may share a GPU.
    const Result<Clock::Time> begin = AgreeOnStart();
    if (!begin.ok()) return begin.status();
    GF_RETURN_IF_ERROR(backward_->Run(begin.value(), [](std::size_t) {}));
    const Result<Clock::Time> end = backward_->End();
    if (!end.ok()) return end.status();
    if (run >= 0) seconds.push_back(Seconds(end.value() - begin.value()));
  }
  alone_seconds_ = Median(seconds);
  // The rest of an iteration keeps its proportion to backward.
  rest_seconds_ *= alone_seconds_ / model_.backward_seconds;
  return Status();
}

Result<Clock::Time> ModeRun::AgreeOnStart() {
  std::int64_t start = (waiter_.Now() + kRunUp).count();
  CollectiveCall call;
  call.kind = CollectiveKind::kAllreduce;
  call.output = &start;
  call.count = 1;
  call.dtype = call.wire = DType::kInt64;
  call.op = ReduceOp::kMax;
  GF_RETURN_IF_ERROR(session_->communicator().Run(call));
  return Clock::Time(start);
}

Status ModeRun::Barrier() {
  CollectiveCall barrier;
  barrier.kind = CollectiveKind::kBarrier;
  return session_->communicator().Run(barrier);
}

Result<StepSample> ModeRun::Timed() {
  const Result<Clock::Time> begin = AgreeOnStart();
  if (!begin.ok()) return begin.status();
  GF_RETURN_IF_ERROR(backward_->Run(
      begin.value(), [this](std::size_t i) { session_->GradientReady(i); }));
  const Result<StepStats> stats = session_->FinishStep();
  if (!stats.ok()) return stats.status();
  const Clock::Time finished = waiter_.Now();
  waiter_.Until(finished + FromSeconds(rest_seconds_));
  const Clock::Time end = waiter_.Now();
  // Before a rank makes its next gradients, which would keep a core from
  // those that are still being timed.
  GF_RETURN_IF_ERROR(Barrier());
  if (stats.value().nonfinite) {
    return Status(StatusCode::kDataLoss, "finite gradients became non-finite");
  }
  const Result<Clock::Time> backward_end = backward_->End();
  if (!backward_end.ok()) return backward_end.status();
  StepSample sample;
  sample.iteration_seconds = Seconds(end - begin.value());
  sample.exposed_seconds = Seconds(finished - backward_end.value());
  const double communication =
      stats.value().hidden_seconds + stats.value().exposed_seconds;
  sample.hidden_seconds = std::max(0.0, communication - sample.exposed_seconds);
  sample.bytes_sent = static_cast<double>(stats.value().bytes_sent);
  sample.bucket_bytes = static_cast<double>(stats.value().bucket_bytes);
  sample.buckets = static_cast<double>(stats.value().buckets);
  sample.base_seconds = alone_seconds_ + rest_seconds_;
  return sample;
}

Result<StepSample> ModeRun::Step() {
  const Status prepared = backward_->Prepare(step_);
  if (!prepared.ok()) return At(prepared);
  Result<StepSample> sample = Timed();
  if (!sample.ok()) return At(sample.status());
  const Result<ConstBufferView> pool = backward_->Read();
  if (!pool.ok()) return At(pool.status());
  const Status right =
      oracle_->Check(step_, pool.value(), session_->selection());
  ++step_;
  if (!right.ok()) return At(right);
  return sample;
}

Status ModeRun::CheckSameBits() {
  const auto mine = static_cast<std::int64_t>(oracle_->hash());
  std::vector<std::int64_t> all(static_cast<std::size_t>(session_->size()));
  CollectiveCall call;
  call.kind = CollectiveKind::kAllgather;
  call.input = &mine;
  call.output = all.data();
  call.count = 1;
  call.dtype = call.wire = DType::kInt64;
  const Status gathered = session_->communicator().Run(call);
  if (!gathered.ok()) return At(gathered);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == mine) continue;
    return At(Status(
        StatusCode::kDataLoss,
        StrCat("rank ", rank, " got other bits than rank ", session_->rank())));
  }
  return Status();
}

// A line that stays in place on a terminal; elsewhere one line per cell.
void ShowProgress(const Cell& cell, int round) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  if (!terminal && round >= 0) return;
  const std::string what =
      round < 0 ? "warming up"
                : StrCat("round ", round + 1, " of ", cell.rounds);
  std::fprintf(stderr, "%sscaling: %s, %d %s, %s%s", terminal ? "\r" : "",
               cell.model.name.c_str(), cell.ranks,
               cell.ranks == 1 ? "rank" : "ranks", what.c_str(),
               terminal ? "\033[K" : "\n");
}

void EraseProgress() {
  if (isatty(STDERR_FILENO) != 0) std::fputs("\r\033[K", stderr);
}

}  // namespace

Result<CellSamples> RunCell(const Cell& cell, const Options& options) {
  SleepingWaiter waiter;
  std::unique_ptr<Gpu> gpu;
  std::vector<std::unique_ptr<ModeRun>> runs;
  for (const Mode& mode : cell.modes) {
    runs.push_back(std::make_unique<ModeRun>(cell, mode, waiter));
    GF_RETURN_IF_ERROR(runs.back()->Open(options, &gpu));
  }
  CellSamples samples(runs.size());
  for (int round = -1; round < cell.rounds; ++round) {
    if (options.rank == 0) ShowProgress(cell, round);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const int steps = round < 0 ? cell.warmup_steps : cell.steps;
      for (int step = 0; step < steps; ++step) {
        const Result<StepSample> sample = runs[i]->Step();
        if (!sample.ok()) return sample.status();
        if (round >= 0) samples[i].push_back(sample.value());
      }
    }
  }
  if (options.rank == 0) EraseProgress();
  for (const auto& run : runs) {
    GF_RETURN_IF_ERROR(run->CheckSameBits());
  }
  return samples;
}

}  // namespace gradientflow::benchmarks
