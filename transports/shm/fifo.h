#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gradientflow/base/status.h"

namespace gradientflow {

// The control block that precedes the bytes of a FIFO in shared memory. The
// counters are totals of all bytes ever moved: the producer counts those that
// it has written, the consumer those that it has read. Each counter has a
// single writer and a cache line of its own.
struct FifoControl {
  alignas(64) std::atomic<std::uint64_t> head{0};  // Written.
  alignas(64) std::atomic<std::uint64_t> tail{0};  // Read.
  // Set by the consumer before it blocks, to what the producer shall ring for
  // (bits of RingFor). Cleared by whichever side comes first.
  alignas(64) std::atomic<std::uint32_t> consumer_sleeps{0};
  // Counts the producer's signs of life, which come through even if the FIFO is
  // full.
  alignas(64) std::atomic<std::uint64_t> beats{0};
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

enum RingFor : std::uint32_t {
  kRingForData = 1,  // There is something to read.
  kRingForRoom = 2,  // The FIFO of the other direction has room.
  kRingForSlot = 4,  // A SyncSlot of the producer has changed.
};

inline constexpr std::size_t kMinFifoBytes = 4096;
inline constexpr std::size_t kMaxFifoBytes = std::size_t{1} << 30;
// Bytes of the control block, before the data.
inline constexpr std::size_t kFifoControlBytes = 4096;
static_assert(sizeof(FifoControl) <= kFifoControlBytes);

// The memory of a FIFO, as mapped in this process. Owns nothing.
struct FifoMemory {
  FifoControl* control = nullptr;
  std::byte* data = nullptr;
  std::size_t capacity = 0;  // A power of two, at most kMaxFifoBytes.
};

// The capacity for a setting of `fifo_bytes`.
std::size_t FifoCapacity(std::size_t fifo_bytes);

// The end of the only producer: a stream of bytes. room() and Write() use the
// last known state of the consumer; Refresh() reads it again.
class FifoWriter {
 public:
  explicit FifoWriter(const FifoMemory& memory) : memory_(memory) {}

  std::size_t room() const {
    return memory_.capacity - static_cast<std::size_t>(head_ - tail_);
  }
  std::size_t unpublished() const {
    return static_cast<std::size_t>(head_ - published_);
  }
  // Returns kDataLoss if the consumer's counter is impossible.
  Status Refresh();
  // REQUIRES bytes.size() <= room().
  void Write(std::span<const std::byte> bytes);
  // Shows the consumer what was written. Ordered before later loads of
  // consumer_sleeps, since both are sequentially consistent.
  void Publish();

 private:
  const FifoMemory memory_;
  // Private copies, because a broken peer can overwrite the shared counters.
  std::uint64_t head_ = 0;
  std::uint64_t published_ = 0;
  std::uint64_t tail_ = 0;
};

// The end of the only consumer.
class FifoReader {
 public:
  explicit FifoReader(const FifoMemory& memory) : memory_(memory) {}

  std::size_t available() const {
    return static_cast<std::size_t>(head_ - tail_);
  }
  std::size_t unreleased() const {
    return static_cast<std::size_t>(tail_ - released_);
  }
  // Returns kDataLoss if the producer's counter is impossible.
  Status Refresh();
  // REQUIRES into.size() <= available().
  void Read(std::span<std::byte> into);
  // Lets the producer reuse what was read.
  void Release();

 private:
  const FifoMemory memory_;
  std::uint64_t head_ = 0;
  std::uint64_t tail_ = 0;
  std::uint64_t released_ = 0;
};

}  // namespace gradientflow
