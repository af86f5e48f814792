#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/lib/must.h"
#include "transports/rdma/card_memory.h"
#include "transports/rdma/queue_pair.h"
#include "transports/rdma/rail.h"

// The writes of an allreduce, or of a stream, and nothing else: no fabric, no
// schedule, no checks. What the library takes beyond that is its overhead.
namespace gradientflow::benchmarks {

class BareRank {
 public:
  static constexpr int kMostWrites = 8;  // Of a stream, at a time.
  static constexpr std::size_t kMostSegments = 4;

  // The rank is on a port like "rxe0:1". Errors are thrown (lib/must.h).
  BareRank(const std::string& port, std::size_t rank, std::size_t ranks,
           std::size_t floats);
  // Connects this end; the other rank has to do the same.
  void Link(BareRank& other);

  std::size_t rank() const { return rank_; }
  float* data() { return pool_; }

  // Each returns when this rank is done; it yields while it waits.
  // Sums over all ranks: blocks to their owners, sums to all, in so many
  // segments (1 to kMostSegments).
  void Allreduce(std::size_t segments);
  // Writes all floats to rank `to`, `times` times.
  void Write(std::size_t to, int times);
  // Waits for as many writes.
  void AwaitWrites(int times);

 private:
  using Counts = std::array<std::uint64_t, 2 * kMostSegments>;
  struct End final : QueuePair::Owner {
    void OnImmediate(std::uint32_t number, std::uint32_t) override {
      ++(*notices)[number];
    }
    void OnWritten(std::uint64_t) override {}
    void OnBroken(const Status& why) override { Must(why); }
    Counts* notices = nullptr;
    std::unique_ptr<QueuePair> pair;
    RemotePlace pool;
    RemotePlace slots;
  };

  void Put(const float* from, std::size_t floats, const End& to,
           RemotePlace there, std::size_t phase);
  void Await(std::size_t phase, std::uint64_t notices);
  void Poll();

  const std::size_t rank_;
  const std::size_t floats_;
  std::shared_ptr<Rail> rail_;
  CardMemory memory_;
  Registration registration_;
  float* pool_ = nullptr;
  float* slots_ = nullptr;  // The block of this rank, from each rank.
  Counts notices_ = {};     // That came, by phase,
  Counts awaited_ = {};     // and that were awaited.
  std::vector<End> ends_;
};

}  // namespace gradientflow::benchmarks
