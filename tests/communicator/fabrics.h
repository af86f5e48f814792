#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gradientflow/base/manual_clock.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/collectives/executor.h"
#include "kernels/kernels.h"
#include "transports/fabric.h"
#include "transports/inproc/create.h"
#include "transports/poller.h"

// The fabrics and executors of some ranks, driven in turn on one thread.
namespace gradientflow::testing {

// How one operation ended.
struct Ended {
  int times = 0;
  std::uint32_t flags = 0;
  Status status;
  Done done() {
    return {
        [](void* self, std::uint64_t, std::uint32_t seen, const Status& how) {
          auto& ended = *static_cast<Ended*>(self);
          ++ended.times;
          ended.flags = seen;
          ended.status = how;
        },
        this, 0};
  }
};

class Fabrics {
 public:
  explicit Fabrics(int size) {
    ShmOptions shm;
    shm.arena_bytes = std::size_t{1} << 20;
    shm.fifo_bytes = std::size_t{16} << 10;
    auto inproc = InprocGroup::Create(size, shm).value();
    for (int r = 0; r < size; ++r) {
      fabrics_.push_back(std::make_unique<Fabric>(
          r, size, clock, Poller::Create().value(), FabricOptions()));
      Fabric& fabric = *fabrics_.back();
      fabric.Connect(inproc->Connect(r, &fabric.poller(), &fabric).value());
      CallGroup group;
      group.rank = r;
      group.size = size;
      group.topology.host.assign(static_cast<std::size_t>(size), 0);
      executors_.push_back(std::make_unique<Executor>(
          ExecutorArgs{&fabric, nullptr, &kernels::CpuKernels(), &clock,
                       nullptr, nullptr},
          group, TypicalCostModels(), ExecutorOptions()));
    }
  }

  Fabric& fabric(int rank) { return *fabrics_[static_cast<std::size_t>(rank)]; }
  Executor& executor(int rank) {
    return *executors_[static_cast<std::size_t>(rank)];
  }
  void Poll(int rounds = 100) {
    for (int i = 0; i < rounds; ++i) {
      for (auto& executor : executors_) {
        if (executor != nullptr) executor->Poll();
      }
    }
  }
  // The rank says good-bye, and is gone.
  void Leave(int rank) {
    fabric(rank).Leave(std::chrono::nanoseconds(0));
    Poll();
    fabrics_[static_cast<std::size_t>(rank)].reset();
    executors_[static_cast<std::size_t>(rank)].reset();
  }

  ManualClock clock;

 private:
  // The fabrics go first: what is in flight ends in the executors.
  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<std::unique_ptr<Fabric>> fabrics_;
};

}  // namespace gradientflow::testing
