#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "benchmarks/lib/must.h"
#include "transports/rdma/card_memory.h"
#include "transports/rdma/queue_pair.h"
#include "transports/rdma/rail.h"

namespace gradientflow::benchmarks {

// The writes of a stream from one device to another, and nothing else: no
// fabric, no checks. What the library takes beyond that is its overhead. Errors
// are thrown (lib/must.h).
class BareStream {
 public:
  static constexpr int kMostWrites = 8;  // At a time.

  // Each write has `bytes` bytes, from port 1 of the device whose name is
  // `devices` and 0 to that of the one with 1.
  BareStream(const std::string& devices, std::size_t bytes);

  // One thread writes, and another one waits for as many writes; each returns
  // when its side is done, and yields while it waits.
  void Write(int times);
  void Await(int times);

 private:
  struct End final : QueuePair::Owner {
    End(const std::string& port, std::size_t bytes);
    void OnImmediate(std::uint32_t, std::uint32_t) override { --awaited; }
    void OnWritten(std::uint64_t) override {}
    void OnBroken(const Status& why) override { Must(why); }
    void Connect(const End& peer);
    void Poll() const;

    std::shared_ptr<Rail> rail;
    CardMemory memory;
    Registration registration;
    std::unique_ptr<QueuePair> pair;
    int awaited = 0;
  };

  End from_;
  End to_;
};

}  // namespace gradientflow::benchmarks
