#include "gradientflow/probe/load.h"

#include <algorithm>
#include <cstddef>

#include "gradientflow/base/without_signals.h"

namespace gradientflow {
namespace {

// A product of matrices of this side takes some 20 us and fits in a core's own
// caches; the pass over memory after it does not.
constexpr std::size_t kSide = 64;
constexpr std::size_t kBlockElements = std::size_t{64} << 10;
constexpr std::size_t kMemoryElements = std::size_t{4} << 20;

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

}  // namespace gradientflow
