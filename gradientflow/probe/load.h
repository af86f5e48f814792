#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/workers.h"

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

// An interval in which threads computed.
struct LoadWindow {
  double seconds = 0;
  double products = 0;  // Of all threads.
  double messages = 0;  // That the rank sent meanwhile; it got as many.
};

// Returns by how many seconds each message of `beside` made the threads' work
// longer, which had no messages beside it in `alone`: the seconds that each
// message took, times the part of its products that the threads did not do in
// them. Below 0 if they did more than before.
// REQUIRES that time passed in both, products in `alone`, messages in `beside`.
double LongerPerMessage(const LoadWindow& alone, const LoadWindow& beside);

// What this rank does with memory: bytes per second. Where ranks share cores, a
// rank gets its part of one.
struct MemoryRates {
  double p50 = 0;  // Of the windows of the measurement.
  double p99 = 0;  // At least 99 % of them were as fast.
};

// Adds `bytes` of float32 to another such buffer, for about `seconds`: the work
// of a rank that reduces.
MemoryRates MeasureReduce(std::size_t bytes, double seconds,
                          const Clock& clock);

// CSC's pass before the wire over float32 gradients that it keeps back. They
// lie in memory of `bytes`, rounded down to whole passes, but at least one.
// Chunks have the default length.
class ResidualPass {
 public:
  // `workers` are borrowed.
  ResidualPass(std::size_t bytes, Workers& workers);

  // What the thread that drives passes over at a time: see csc/pass_size.h.
  std::size_t elements() const { return chunks_ * chunk_elements_; }
  // The next pass; the first one follows the last one.
  void Make();
  // Bytes of gradients per second.
  MemoryRates Measure(double seconds, const Clock& clock);

 private:
  const std::size_t chunk_elements_;
  Workers& workers_;
  const std::size_t chunks_;  // Of a pass.
  const std::size_t passes_;
  std::vector<float> gradients_;
  std::vector<float> residual_;
  std::vector<float> norms_;  // Of a pass.
  std::size_t next_ = 0;
};

}  // namespace gradientflow
