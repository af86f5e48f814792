#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "gradientflow/base/clock.h"

namespace gradientflow {

// Threads that compute, as backward does on a CPU: they multiply small matrices
// and pass over memory between two products. They block all signals.
class ComputeLoad {
 public:
  // REQUIRES at least one thread.
  explicit ComputeLoad(int threads);
  ~ComputeLoad();  // Ends the threads; takes a millisecond or so.
  ComputeLoad(const ComputeLoad&) = delete;
  ComputeLoad& operator=(const ComputeLoad&) = delete;

  // The work that all threads have done so far, in products.
  std::uint64_t products() const;

 private:
  struct Worker;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<bool> stop_{false};
};

// What this rank's core does with memory: bytes per second.
struct MemoryRates {
  double p50 = 0;
  double p99 = 0;  // At least 99 % of some dozens of passes were as fast.
};

// Adds `bytes` of float32 to another such buffer, for about `seconds`: the work
// of a rank that reduces.
MemoryRates MeasureReduce(std::size_t bytes, double seconds,
                          const Clock& clock);
// CSC's pass before the wire over float32 gradients of `bytes` that it keeps
// back: bytes of gradients per second.
MemoryRates MeasureResidual(std::size_t bytes, double seconds,
                            const Clock& clock);

}  // namespace gradientflow
