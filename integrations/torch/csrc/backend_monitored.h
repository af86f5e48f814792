#pragma once

#include <atomic>
#include <cstdint>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "operations.h"

namespace gft {

// The barrier that names the ranks that did not come. All ranks write to rank
// 0, which answers with one byte per rank: 1 for each rank that did not write.
class MonitoredBarrier {
 public:
  // `operations` outlive it.
  explicit MonitoredBarrier(Operations& operations) : operations_(operations) {}

  // Blocks. Throws if a rank did not come in time; if `wait_all_ranks`, rank 0
  // names all of them, else one.
  void Run(const c10d::BarrierOptions& opts, bool wait_all_ranks);

 private:
  WorkPtr SendBytes(const at::Tensor& bytes, int peer, uint32_t tag);
  WorkPtr ReceiveBytes(const at::Tensor& bytes, int peer, uint32_t tag);

  Operations& operations_;
  std::atomic<uint32_t> rounds_{0};
};

}  // namespace gft
