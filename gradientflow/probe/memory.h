#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/base/workers.h"
#include "gradientflow/communicator/communicator.h"

namespace gradientflow {

// Bytes per second. Where ranks share cores, a rank gets its part of one.
struct MemoryRates {
  double p50 = 0;  // Of the windows of the measurement.
  double p99 = 0;  // At least 99 % of them were as fast.
};

// What a rank does with memory, again and again: one pass goes over `bytes`.
struct MemoryWork {
  double bytes = 0;
  std::function<void()> pass;
};

// Adds `bytes` of float32 to another such buffer: the work of a rank that
// reduces. The buffers belong to what is returned.
MemoryWork ReduceWork(std::size_t bytes);

// The rates of this rank, whatever the others do, in about `seconds`.
MemoryRates MeasureAlone(const MemoryWork& work, double seconds,
                         const Clock& clock);

// All ranks do their work at the same time. Each window begins when all are
// there, and the slowest rank counts, since a step waits for it. A collective:
// all ranks get the same rates; errors are those of the communicator.
Result<MemoryRates> MeasureTogether(Communicator& comm, const MemoryWork& work,
                                    double seconds, const Clock& clock);

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
  // The same as work over memory, which borrows this.
  MemoryWork Work();

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
