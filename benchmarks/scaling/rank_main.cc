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
#include <algorithm>
#include <chrono>
#include <memory>

#include "benchmarks/lib/rank.h"
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

// The session of one mode, with its oracle and gradients.
class ModeRun {
 public:
  ModeRun(const Model& model, const Json& mode, const Options& options)
      : model_(model),
        session_(OpenSession(options, mode.at("settings"), model.Specs())),
        in_force_(session_->options()),
        comm_(session_->communicator()),
        gradients_(in_force_.pool_dtype),
        backward_(Parts()),
        oracle_(
            gradients_,
            {session_->pool().bytes / SizeOf(in_force_.pool_dtype),
             in_force_.pool_dtype, session_->size(), in_force_.chunk_elements,
             in_force_.momentum, in_force_.accumulate}) {
    Must(session_->SetStream(backward_.native_stream()));
  }

  // Returns a sample.
  Json Step() {
    Must(session_->ZeroGradients());
    backward_.Prepare(step_);
    Json sample = Timed();
    Must(oracle_.Check(step_, backward_.Read(), session_->selection()));
    ++step_;
    return sample;
  }

  // Throws unless every rank has seen the same bits.
  void CheckSameBits() { ExpectSame(comm_, oracle_.hash()); }

 private:
  ReplayParts Parts() {
    const BufferView pool = session_->pool();
    ReplayParts parts{&model_, &gradients_, pool, session_->rank(),
                      in_force_.accumulate};
    if (pool.device.kind == DeviceId::Kind::kCpu) return parts;
    parts.device = Must(OpenCudaDevice(pool.device.index));
    for (std::size_t i = 0; i < session_->tensors(); ++i) {
      parts.offsets.push_back(session_->pool_offset(i) *
                              SizeOf(in_force_.pool_dtype));
    }
    return parts;
  }

  Json Timed() {
    const SteadyClock clock;
    // A moment in the near future, the same on every rank.
    const Clock::Time begin(
        MaxOverRanks(comm_, (clock.Now() + kRunUp).count()));
    backward_.Run(begin, [this](std::size_t i) { session_->GradientReady(i); });
    const StepStats stats = Must(session_->FinishStep());
    const Clock::Time finished = clock.Now();
    WaitUntil(finished + FromSeconds(model_.rest_seconds));
    const Clock::Time end = clock.Now();
    // This comes before a rank makes its next gradients, which would take a
    // core from ranks that are still being timed.
    Barrier(comm_);
    if (stats.nonfinite) {
      throw std::runtime_error("finite gradients became non-finite");
    }
    const double exposed = Seconds(finished - backward_.End());
    const double communication = stats.hidden_seconds + stats.exposed_seconds;
    return {{"iteration_seconds", Seconds(end - begin)},
            {"exposed_seconds", exposed},
            {"hidden_seconds", std::max(0.0, communication - exposed)},
            {"alone_seconds", model_.backward_seconds + model_.rest_seconds},
            {"bytes_sent", stats.bytes_sent},
            {"bucket_bytes", stats.bucket_bytes},
            {"buckets", stats.buckets}};
  }

  const Model& model_;
  const std::unique_ptr<GradientSession> session_;
  const Options& in_force_;
  Communicator& comm_;
  const Gradients gradients_;
  ReplayBackward backward_;
  Oracle oracle_;
  std::uint64_t step_ = 0;
};
}  // namespace

Json RankMain(const Json& job, const Options& options) {
  const Model model = job.at("model");
  const Json& modes = job.at("modes");
  const int rounds = job.at("rounds");
  std::vector<std::unique_ptr<ModeRun>> runs(modes.size());
  Json samples(modes.size(), Json::array());
  std::size_t i = 0;
  try {
    for (; i < runs.size(); ++i) {
      Options own = options;
      own.job_token = StrCat("scaling ", modes[i].at("name").dump());
      runs[i] = std::make_unique<ModeRun>(model, modes[i], own);
    }
    // The untimed steps are for pages, links and choosing theta.
    for (int round = -1; round < rounds; ++round) {
      const int steps = job.at(round < 0 ? "warmup" : "steps");
      for (i = 0; i < runs.size(); ++i) {
        for (int step = 0; step < steps; ++step) {
          const Json sample = runs[i]->Step();
          if (round >= 0) samples[i].push_back(sample);
        }
      }
    }
    for (i = 0; i < runs.size(); ++i) runs[i]->CheckSameBits();
  } catch (const std::exception& error) {
    throw std::runtime_error(StrCat(
        model.name, ", mode ", modes[i].at("name").dump(), ": ", error.what()));
  }
  return samples;
}

}  // namespace gradientflow::benchmarks
