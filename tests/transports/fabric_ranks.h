#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/done.h"
#include "gradientflow/base/manual_clock.h"
#include "gradientflow/base/status.h"
#include "transports/fabric.h"
#include "transports/inproc/create.h"
#include "transports/link.h"
#include "transports/poller.h"
#include "transports/shm/shm_options.h"

// The fabrics of some ranks, driven in turn on one thread.
namespace gradientflow::testing {

// How one operation ended.
struct TransferEnding {
  int times = 0;
  std::uint32_t flags = 0;
  Status status;
  Done done() {
    return {
        [](void* self, std::uint64_t, std::uint32_t seen, const Status& how) {
          auto& ending = *static_cast<TransferEnding*>(self);
          ++ending.times;
          ending.flags = seen;
          ending.status = how;
        },
        this, 0};
  }
};

inline ConstBufferView View(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size(), {}};
}
inline BufferView Room(std::string* text) {
  return {reinterpret_cast<std::byte*>(text->data()), text->size(), {}};
}

class FabricRanks {
 public:
  // Gives a fabric its links; by default all that there are.
  using Connector =
      std::function<void(Fabric*, std::vector<std::unique_ptr<Link>>)>;

  // To be called once.
  void Make(
      int size, const FabricOptions& options = {},
      const Connector& connect = [](Fabric* fabric, auto links) {
        fabric->Connect(std::move(links));
      }) {
    ShmOptions shm;
    shm.arena_bytes =
        std::max(std::size_t{1} << 20, static_cast<std::size_t>(size) << 16);
    shm.fifo_bytes = std::size_t{16} << 10;
    auto group = InprocGroup::Create(size, shm);
    ASSERT_TRUE(group.ok()) << group.status().message();
    for (int r = 0; r < size; ++r) {
      fabrics.push_back(std::make_unique<Fabric>(
          r, size, clock, Poller::Create().value(), options));
      Fabric& fabric = *fabrics.back();
      auto links = group.value()->Connect(r, &fabric.poller(), &fabric);
      ASSERT_TRUE(links.ok()) << links.status().message();
      connect(&fabric, std::move(links).value());
    }
  }
  Fabric& at(int rank) { return *fabrics[static_cast<std::size_t>(rank)]; }
  void PollAll(int rounds = 200) {
    for (int i = 0; i < rounds; ++i) {
      for (auto& fabric : fabrics) {
        if (fabric != nullptr) fabric->Poll();
      }
    }
  }

  ManualClock clock;
  std::vector<std::unique_ptr<Fabric>> fabrics;  // A test may reset some.
};

}  // namespace gradientflow::testing
