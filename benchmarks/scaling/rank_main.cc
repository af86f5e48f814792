// One rank of the scaling benchmark: opens a session per mode and does training
// iterations, with the modes in turn. Gradients flow
//
//   ReplayBackward::Prepare() -> pool -> GradientReady() in backward's order ->
//   FinishStep() -> Oracle::Check()
//
// An iteration is backward, the exposed rest of the communication, and the time
// that forward and update take on the GPU; it begins at the same moment on all
// ranks. Making gradients, and the update itself, are the work of the modelled
// GPU and take no timed work on this machine, except for a copy of each
// gradient if the pool is on a device. Every step's result is checked, outside
// the timed part.
//
// Job: {"model": a plan, "modes": [{"name", "settings"}], "warmup", "rounds",
// "steps"}. Answer: per mode and timed step, an object of seconds and counts.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

#include "benchmarks/rank.h"
#include "benchmarks/scaling/gradients.h"
#include "benchmarks/scaling/model.h"
#include "benchmarks/scaling/oracle.h"
#include "benchmarks/scaling/replay.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/device/cuda_device.h"

namespace gradientflow::benchmarks {
namespace {

// The time for every rank to get from the start signal to its clock.
constexpr Clock::Time kRunUp = std::chrono::milliseconds(2);

// What the ranks do with one model.
struct Cell {
  Model model;
  Json modes;
  int warmup = 0;  // Untimed steps: pages, links, choosing theta.
  int rounds = 0;  // Turns of each mode.
  int steps = 0;   // Per round and mode.
};

// The session of one mode, with its oracle and gradients.
class ModeRun {
 public:
  ModeRun(const Model& model, const Json& mode, Waiter& waiter)
      : model_(model), mode_(mode), waiter_(waiter) {}

  Status Open(Options options);
  Result<Json> Step();
  // kDataLoss unless every rank has seen the same bits.
  Status CheckSameBits();

 private:
  Status At(const Status& status) const {
    return Status(status.code(),
                  StrCat(model_.name, ", mode ", mode_.at("name").dump(), ": ",
                         status.message()));
  }
  Status MakeBackward();
  // Returns a moment in the near future, the same on every rank.
  Result<Clock::Time> AgreeOnStart();
  Result<Json> Timed();

  const Model& model_;
  const Json& mode_;
  Waiter& waiter_;
  std::unique_ptr<GradientSession> session_;
  std::unique_ptr<Gradients> gradients_;
  std::unique_ptr<ReplayBackward> backward_;
  std::unique_ptr<Oracle> oracle_;
  std::uint64_t step_ = 0;
};

Status ModeRun::Open(Options options) {
  options.job_token = StrCat("scaling ", model_.name, mode_.at("name").dump());
  auto session = OpenSession(options, mode_.at("settings"), model_.Specs());
  if (!session.ok()) return At(session.status());
  session_ = std::move(session).value();
  const Options& in_force = session_->options();
  gradients_ = std::make_unique<Gradients>(in_force.pool_dtype);
  Oracle::Pool pool;
  pool.elements = model_.elements();
  pool.dtype = in_force.pool_dtype;
  pool.ranks = session_->size();
  pool.chunk_elements = in_force.chunk_elements;
  pool.momentum = in_force.momentum;
  pool.accumulate = in_force.accumulate;
  oracle_ = std::make_unique<Oracle>(*gradients_, pool);
  const Status made = MakeBackward();
  return made.ok() ? made : At(made);
}

Status ModeRun::MakeBackward() {
  const BufferView pool = session_->pool();
  ReplayParts parts{&model_, gradients_.get(), &waiter_,
                    pool,    session_->rank(), session_->options().accumulate};
  if (pool.device.kind != DeviceId::Kind::kCpu) {
    auto device = OpenCudaDevice(pool.device.index);
    if (!device.ok()) return device.status();
    parts.device = std::move(device).value();
    for (std::size_t i = 0; i < session_->tensors(); ++i) {
      parts.offsets.push_back(session_->pool_offset(i) *
                              SizeOf(session_->options().pool_dtype));
    }
  }
  auto made = ReplayBackward::Create(std::move(parts));
  if (!made.ok()) return made.status();
  backward_ = std::move(made).value();
  return session_->SetStream(backward_->native_stream());
}

Result<Clock::Time> ModeRun::AgreeOnStart() {
  const auto start = MaxOverRanks(*session_, (waiter_.Now() + kRunUp).count());
  if (!start.ok()) return start.status();
  return Clock::Time(start.value());
}

Result<Json> ModeRun::Timed() {
  const Result<Clock::Time> begin = AgreeOnStart();
  if (!begin.ok()) return begin.status();
  GF_RETURN_IF_ERROR(backward_->Run(
      begin.value(), [this](std::size_t i) { session_->GradientReady(i); }));
  const Result<StepStats> stats = session_->FinishStep();
  if (!stats.ok()) return stats.status();
  const Clock::Time finished = waiter_.Now();
  waiter_.Until(finished + FromSeconds(model_.rest_seconds));
  const Clock::Time end = waiter_.Now();
  // This comes before a rank makes its next gradients, which would take a core
  // from ranks that are still being timed.
  GF_RETURN_IF_ERROR(Barrier(*session_));
  if (stats.value().nonfinite) {
    return Status(StatusCode::kDataLoss, "finite gradients became non-finite");
  }
  const double exposed = Seconds(finished - backward_->End());
  const double communication =
      stats.value().hidden_seconds + stats.value().exposed_seconds;
  return Json{{"iteration_seconds", Seconds(end - begin.value())},
              {"exposed_seconds", exposed},
              {"hidden_seconds", std::max(0.0, communication - exposed)},
              {"alone_seconds", model_.backward_seconds + model_.rest_seconds},
              {"bytes_sent", stats.value().bytes_sent},
              {"bucket_bytes", stats.value().bucket_bytes},
              {"buckets", stats.value().buckets}};
}

Result<Json> ModeRun::Step() {
  GF_RETURN_IF_ERROR(session_->ZeroGradients());
  const Status prepared = backward_->Prepare(step_);
  if (!prepared.ok()) return At(prepared);
  Result<Json> sample = Timed();
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
  const Status same = ExpectSame(*session_, oracle_->hash());
  return same.ok() ? same : At(same);
}

// Shows a line that is overwritten on a terminal.
void ShowProgress(const Cell& cell, int round) {
  if (isatty(STDERR_FILENO) == 0) return;
  if (round < cell.rounds) {
    std::fprintf(stderr, "\r%s, round %d of %d\033[K", cell.model.name.c_str(),
                 round + 1, cell.rounds);
  } else {
    std::fputs("\r\033[K", stderr);
  }
}

Result<Json> RankMain(const Json& job, const Options& options) {
  const Cell cell{ModelOf(job.at("model")), job.at("modes"), job.at("warmup"),
                  job.at("rounds"), job.at("steps")};
  SleepingWaiter waiter;
  std::vector<std::unique_ptr<ModeRun>> runs;
  for (const Json& mode : cell.modes) {
    runs.push_back(std::make_unique<ModeRun>(cell.model, mode, waiter));
    GF_RETURN_IF_ERROR(runs.back()->Open(options));
  }
  Json samples(runs.size(), Json::array());
  for (int round = -1; round < cell.rounds; ++round) {
    if (options.rank == 0) ShowProgress(cell, round);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const int steps = round < 0 ? cell.warmup : cell.steps;
      for (int step = 0; step < steps; ++step) {
        const Result<Json> sample = runs[i]->Step();
        if (!sample.ok()) return sample.status();
        if (round >= 0) samples[i].push_back(sample.value());
      }
    }
  }
  if (options.rank == 0) ShowProgress(cell, cell.rounds);
  for (const auto& run : runs) {
    GF_RETURN_IF_ERROR(run->CheckSameBits());
  }
  return samples;
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  using namespace gradientflow::benchmarks;  // NOLINT: a main().
  return RunRank(argc, argv, &RankMain);
}
