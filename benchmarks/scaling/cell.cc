#include "benchmarks/scaling/cell.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

#include "benchmarks/scaling/gradients.h"
#include "benchmarks/scaling/oracle.h"
#include "benchmarks/scaling/replay.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/session.h"

namespace gradientflow::benchmarks {
namespace {

// For every rank to get from the start signal to its clock.
constexpr Clock::Time kRunUp = std::chrono::milliseconds(2);

// One mode's session with what belongs to it.
class Replay {
 public:
  Replay(const Cell& cell, const Mode& mode, Waiter& waiter)
      : model_(cell.model),
        mode_(mode),
        order_(cell.model.ReadyOrder()),
        gradients_(mode.dtype),
        waiter_(waiter) {}

  Status Open(Options options);
  Result<StepSample> Step();
  // kDataLoss unless every rank has seen the same bits.
  Status CheckSameBits();

 private:
  Status At(const Status& status) const {
    return Status(status.code(), StrCat(model_.name, ", mode ", mode_.name,
                                        ": ", status.message()));
  }
  // A moment a little ahead, the same on every rank.
  Result<Clock::Time> AgreeOnStart();
  Result<StepSample> Timed();

  const Model& model_;
  const Mode& mode_;
  const std::vector<std::size_t> order_;
  const Gradients gradients_;
  Waiter& waiter_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Oracle> oracle_;
  std::uint64_t step_ = 0;
};

Status Replay::Open(Options options) {
  mode_.Apply(options);
  options.job_token = StrCat("scaling ", model_.name, " ", mode_.name);
  std::vector<TensorSpec> specs;
  for (const ModelTensor& tensor : model_.tensors) {
    specs.push_back(TensorSpec{tensor.name, tensor.elements, false});
  }
  auto session = Session::Open(options, specs);
  if (!session.ok()) return At(session.status());
  session_ = std::move(session).value();
  Oracle::Pool pool;
  pool.elements = model_.elements();
  pool.dtype = mode_.dtype;
  pool.ranks = session_->size();
  pool.chunk_elements = session_->options().chunk_elements;
  pool.momentum = session_->options().momentum;
  oracle_ = std::make_unique<Oracle>(gradients_, pool);
  return Status();
}

Result<Clock::Time> Replay::AgreeOnStart() {
  std::int64_t start = (waiter_.Now() + kRunUp).count();
  CollectiveCall call;
  call.kind = CollectiveKind::kAllreduce;
  call.output = &start;
  call.count = 1;
  call.dtype = call.wire = DType::kInt64;
  call.op = ReduceOp::kMax;
  GF_RETURN_IF_ERROR(session_->Run(call));
  return Clock::Time(start);
}

Result<StepSample> Replay::Timed() {
  const Result<Clock::Time> begin = AgreeOnStart();
  if (!begin.ok()) return begin.status();
  ReplayBackward(model_, order_, begin.value(), waiter_,
                 [this](std::size_t i) { session_->GradientReady(i); });
  const Result<StepStats> stats = session_->FinishStep();
  if (!stats.ok()) return stats.status();
  const Clock::Time finished = waiter_.Now();
  waiter_.Until(finished + FromSeconds(model_.rest_seconds));
  const Clock::Time end = waiter_.Now();
  // Before a rank makes its next gradients, which would keep a core from
  // those that are still being timed.
  CollectiveCall barrier;
  barrier.kind = CollectiveKind::kBarrier;
  GF_RETURN_IF_ERROR(session_->Run(barrier));
  if (stats.value().nonfinite) {
    return Status(StatusCode::kDataLoss, "finite gradients became non-finite");
  }
  StepSample sample;
  sample.iteration_seconds = Seconds(end - begin.value());
  // From when a GPU would have been done, also where this thread came late
  // for want of a core.
  sample.exposed_seconds =
      Seconds(finished - begin.value()) - model_.backward_seconds;
  const double communication =
      stats.value().hidden_seconds + stats.value().exposed_seconds;
  sample.hidden_seconds = std::max(0.0, communication - sample.exposed_seconds);
  sample.bytes_sent = static_cast<double>(stats.value().bytes_sent);
  sample.bucket_bytes = static_cast<double>(stats.value().bucket_bytes);
  sample.buckets = static_cast<double>(stats.value().buckets);
  return sample;
}

Result<StepSample> Replay::Step() {
  gradients_.Fill(session_->rank(), step_, session_->pool());
  Result<StepSample> sample = Timed();
  if (!sample.ok()) return At(sample.status());
  const Status right =
      oracle_->Check(step_, session_->pool(), session_->selection());
  ++step_;
  if (!right.ok()) return At(right);
  return sample;
}

Status Replay::CheckSameBits() {
  const auto mine = static_cast<std::int64_t>(oracle_->hash());
  std::vector<std::int64_t> all(static_cast<std::size_t>(session_->size()));
  CollectiveCall call;
  call.kind = CollectiveKind::kAllgather;
  call.input = &mine;
  call.output = all.data();
  call.count = 1;
  call.dtype = call.wire = DType::kInt64;
  const Status gathered = session_->Run(call);
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
  std::vector<std::unique_ptr<Replay>> replays;
  for (const Mode& mode : cell.modes) {
    replays.push_back(std::make_unique<Replay>(cell, mode, waiter));
    GF_RETURN_IF_ERROR(replays.back()->Open(options));
  }
  CellSamples samples(replays.size());
  for (int round = -1; round < cell.rounds; ++round) {
    if (options.rank == 0) ShowProgress(cell, round);
    for (std::size_t i = 0; i < replays.size(); ++i) {
      const int steps = round < 0 ? cell.warmup_steps : cell.steps;
      for (int step = 0; step < steps; ++step) {
        const Result<StepSample> sample = replays[i]->Step();
        if (!sample.ok()) return sample.status();
        if (round >= 0) samples[i].push_back(sample.value());
      }
    }
  }
  if (options.rank == 0) EraseProgress();
  for (const auto& replay : replays) {
    GF_RETURN_IF_ERROR(replay->CheckSameBits());
  }
  return samples;
}

}  // namespace gradientflow::benchmarks
