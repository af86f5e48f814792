#include "gradientflow/probe/memory.h"

#include <algorithm>
#include <memory>

#include "gradientflow/base/quantile.h"
#include "gradientflow/config/options.h"
#include "gradientflow/csc/pass_size.h"
#include "gradientflow/probe/calls.h"
#include "kernels/kernels.h"

// A window is many passes where it can be: ranks that share cores wait for
// each other between passes, and hardly ever within one. Windows in which all
// ranks work begin with a barrier. The system would otherwise leave ranks where
// they are, one of them alone on a core for half a second and three on another,
// as it never does in a step, where ranks wait for each other often.
namespace gradientflow {
namespace {

constexpr int kWindows = 20;

double SecondsOf(const MemoryWork& work, int passes, const Clock& clock) {
  const Clock::Time begin = clock.Now();
  for (int pass = 0; pass < passes; ++pass) work.pass();
  return std::max(Seconds(clock.Now() - begin), 1e-9);
}

// How many passes take so long, and at least one.
int PassesIn(const MemoryWork& work, double seconds, const Clock& clock) {
  work.pass();  // Pages.
  int passes = 0;
  double taken = 0;
  do {
    taken += SecondsOf(work, 1, clock);
    ++passes;
  } while (taken < seconds);
  return passes;
}

// Returns the rates of windows, from the seconds that each took per byte.
MemoryRates RatesOf(const std::vector<double>& seconds_per_byte) {
  return {1 / Quantile(seconds_per_byte, 0.5),
          1 / Quantile(seconds_per_byte, 0.99)};
}

}  // namespace

MemoryWork ReduceWork(std::size_t bytes) {
  struct Buffers {
    std::vector<float> sum;
    std::vector<float> more;
  };
  const std::size_t elements = bytes / sizeof(float);
  const auto buffers = std::make_shared<Buffers>(Buffers{
      std::vector<float>(elements), std::vector<float>(elements, 1.0F)});
  return {static_cast<double>(bytes), [buffers] {
            const kernels::AccumulateArgs args{
                .dst = buffers->sum.data(),
                .dst_type = kernels::DType::kFloat32,
                .src = buffers->more.data(),
                .src_type = kernels::DType::kFloat32,
                .n = buffers->sum.size(),
                .op = kernels::ReduceOp::kSum,
                .dst_scale = 1.0F,
                .out_scale = 1.0F,
                .nonfinite = nullptr};
            kernels::CpuKernels().accumulate(args, nullptr);
          }};
}

MemoryRates MeasureAlone(const MemoryWork& work, double seconds,
                         const Clock& clock) {
  const int passes = PassesIn(work, seconds / kWindows, clock);
  std::vector<double> each;
  for (int window = 0; window < kWindows; ++window) {
    each.push_back(SecondsOf(work, passes, clock) / (passes * work.bytes));
  }
  return RatesOf(each);
}

Result<MemoryRates> MeasureTogether(Communicator& comm, const MemoryWork& work,
                                    double seconds, const Clock& clock) {
  GF_RETURN_IF_ERROR(Barrier(comm));
  std::vector<double> least = {
      static_cast<double>(PassesIn(work, seconds / kWindows, clock))};
  GF_RETURN_IF_ERROR(Allreduce(comm, ReduceOp::kMin, &least));
  const int passes = static_cast<int>(least[0]);
  std::vector<double> slowest;
  for (int window = 0; window < kWindows; ++window) {
    GF_RETURN_IF_ERROR(Barrier(comm));
    slowest.push_back(SecondsOf(work, passes, clock) / (passes * work.bytes));
  }
  GF_RETURN_IF_ERROR(Allreduce(comm, ReduceOp::kMax, &slowest));
  return RatesOf(slowest);
}

ResidualPass::ResidualPass(std::size_t bytes, Workers& workers)
    : chunk_elements_(Options().chunk_elements),
      workers_(workers),
      chunks_(PassChunks(workers.threads(), chunk_elements_)),
      passes_(std::max<std::size_t>(1, bytes / sizeof(float) / elements())),
      gradients_(passes_ * elements(), 1.0F),
      residual_(gradients_.size()),
      norms_(chunks_) {}

void ResidualPass::Make() {
  const std::size_t first = next_ * elements();
  next_ = (next_ + 1) % passes_;
  const auto part = [&](std::size_t chunk) {
    norms_[chunk] = 0;
    const std::size_t begin = first + chunk * chunk_elements_;
    const kernels::ResidualArgs args{.grads = &gradients_[begin],
                                     .type = kernels::DType::kFloat32,
                                     .residual = &residual_[begin],
                                     .n = chunk_elements_,
                                     .send = false,
                                     .zero_kept = false,
                                     .keep_factor = 0.9F,
                                     .norm = &norms_[chunk]};
    kernels::CpuKernels().residual(args, nullptr);
    return Status();
  };
  static_cast<void>(RunPass(&workers_, chunks_, elements(), part));
}

MemoryWork ResidualPass::Work() {
  for (std::size_t pass = 0; pass < passes_; ++pass) Make();  // Pages.
  return {static_cast<double>(elements() * sizeof(float)), [this] { Make(); }};
}

}  // namespace gradientflow
