#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "gradientflow/base/manual_clock.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/collectives/executor.h"
#include "kernels/kernels.h"
#include "tests/transports/fabric_ranks.h"
#include "transports/fabric.h"

// The fabrics and executors of some ranks, driven in turn on one thread.
namespace gradientflow::testing {

class Fabrics {
 public:
  explicit Fabrics(int size) {
    ranks_.Make(size);
    for (int r = 0; r < size; ++r) {
      CallGroup group;
      group.rank = r;
      group.size = size;
      group.topology.host.assign(static_cast<std::size_t>(size), 0);
      executors_.push_back(std::make_unique<Executor>(
          ExecutorArgs{&fabric(r), nullptr, &kernels::CpuKernels(),
                       &ranks_.clock, nullptr, nullptr},
          group, TypicalCostModels(), ExecutorOptions()));
    }
  }

  // What is in flight ends in the executors.
  ~Fabrics() { ranks_.fabrics.clear(); }

  ManualClock& clock() { return ranks_.clock; }
  Fabric& fabric(int rank) { return ranks_.at(rank); }
  Executor& executor(int rank) {
    return *executors_[static_cast<std::size_t>(rank)];
  }
  void Poll(int rounds = 100) {
    for (int i = 0; i < rounds; ++i) {
      for (std::size_t r = 0; r < executors_.size(); ++r) {
        if (executors_[r] == nullptr) continue;
        PollTogether(*executors_[r], fabric(static_cast<int>(r)));
      }
    }
  }
  // The rank says good-bye, and is gone.
  void Leave(int rank) {
    fabric(rank).Leave(std::chrono::nanoseconds(0));
    Poll();
    ranks_.fabrics[static_cast<std::size_t>(rank)].reset();
    executors_[static_cast<std::size_t>(rank)].reset();
  }

 private:
  FabricRanks ranks_;
  std::vector<std::unique_ptr<Executor>> executors_;
};

}  // namespace gradientflow::testing
