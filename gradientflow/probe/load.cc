#include "gradientflow/probe/load.h"

#include <algorithm>
#include <cstddef>
#include <functional>

#include "gradientflow/base/quantile.h"
#include "gradientflow/base/without_signals.h"
#include "gradientflow/config/options.h"
#include "gradientflow/csc/pass_size.h"
#include "kernels/kernels.h"

namespace gradientflow {
namespace {

// A product of matrices of this side takes some 20 us and fits in a core's own
// caches; the pass over memory after it does not.
constexpr std::size_t kSide = 64;
constexpr std::size_t kBlockElements = std::size_t{64} << 10;
constexpr std::size_t kMemoryElements = std::size_t{4} << 20;
constexpr int kWindows = 20;

// A window is many passes where it can be: ranks that share cores wait for
// each other between passes, and hardly ever within one.
MemoryRates Measure(double bytes, double seconds, const Clock& clock,
                    const std::function<void()>& pass) {
  pass();  // Pages.
  std::vector<double> rates;
  for (int window = 0; window < kWindows; ++window) {
    const Clock::Time begin = clock.Now();
    double passes = 0;
    double taken = 0;
    do {
      pass();
      ++passes;
      taken = Seconds(clock.Now() - begin);
    } while (taken < seconds / kWindows);
    rates.push_back(passes * bytes / std::max(taken, 1e-9));
  }
  return {Quantile(rates, 0.5), Quantile(rates, 0.01)};
}

}  // namespace

struct ComputeLoad::Worker {
  void Run(const std::atomic<bool>& stop) {
    while (!stop.load(std::memory_order_relaxed)) {
      Multiply();
      Pass();
      done.fetch_add(1, std::memory_order_relaxed);
    }
  }

  void Multiply() {
    for (std::size_t i = 0; i < kSide; ++i) {
      float* const row = &c[i * kSide];
      for (std::size_t k = 0; k < kSide; ++k) {
        const float factor = a[i * kSide + k];
        for (std::size_t j = 0; j < kSide; ++j) {
          row[j] = 0.5F * row[j] + factor * b[k * kSide + j];
        }
      }
    }
  }
  void Pass() {
    for (std::size_t i = 0; i < kBlockElements; ++i) {
      memory[(at + i) % kMemoryElements] += 1.0F;
    }
    at = (at + kBlockElements) % kMemoryElements;
  }

  std::vector<float> a = std::vector<float>(kSide * kSide, 0.5F);
  std::vector<float> b = std::vector<float>(kSide * kSide, 0.25F);
  std::vector<float> c = std::vector<float>(kSide * kSide);
  std::vector<float> memory = std::vector<float>(kMemoryElements);
  std::size_t at = 0;
  std::atomic<std::uint64_t> done{0};
  std::thread thread;
};

ComputeLoad::ComputeLoad(int threads) {
  const WithoutSignals blocked;
  for (int i = 0; i < threads; ++i) {
    workers_.push_back(std::make_unique<Worker>());
    Worker& worker = *workers_.back();
    worker.thread = std::thread([this, &worker] { worker.Run(stop_); });
  }
}

ComputeLoad::~ComputeLoad() {
  stop_.store(true);
  for (const auto& worker : workers_) worker->thread.join();
}

std::uint64_t ComputeLoad::products() const {
  std::uint64_t sum = 0;
  for (const auto& worker : workers_) {
    sum += worker->done.load(std::memory_order_relaxed);
  }
  return sum;
}

double LongerPerMessage(const LoadWindow& alone, const LoadWindow& beside) {
  const double undisturbed = alone.products / alone.seconds * beside.seconds;
  const double lost = 1 - beside.products / undisturbed;
  return beside.seconds / beside.messages * lost;
}

MemoryRates MeasureReduce(std::size_t bytes, double seconds,
                          const Clock& clock) {
  std::vector<float> sum(bytes / sizeof(float));
  const std::vector<float> more(sum.size(), 1.0F);
  const kernels::AccumulateArgs args{.dst = sum.data(),
                                     .dst_type = kernels::DType::kFloat32,
                                     .src = more.data(),
                                     .src_type = kernels::DType::kFloat32,
                                     .n = sum.size(),
                                     .op = kernels::ReduceOp::kSum,
                                     .dst_scale = 1.0F,
                                     .out_scale = 1.0F,
                                     .nonfinite = nullptr};
  return Measure(static_cast<double>(bytes), seconds, clock,
                 [&] { kernels::CpuKernels().accumulate(args, nullptr); });
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

MemoryRates ResidualPass::Measure(double seconds, const Clock& clock) {
  for (std::size_t pass = 0; pass < passes_; ++pass) Make();  // Pages.
  return gradientflow::Measure(static_cast<double>(elements() * sizeof(float)),
                               seconds, clock, [this] { Make(); });
}

}  // namespace gradientflow
