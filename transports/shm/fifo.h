#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gradientflow/base/status.h"

namespace gradientflow {

// In shared memory, before the bytes of a FIFO. Counters are of all bytes ever
// moved; each has one writer, and a line of its own.
struct FifoControl {
  alignas(64) std::atomic<std::uint64_t> head{0};  // Written, by the producer.
  alignas(64) std::atomic<std::uint64_t> tail{0};  // Read, by the consumer.
  // Set by the consumer before it blocks, to what the producer shall ring for:
  // bits of RingFor. Cleared by whoever comes first.
  alignas(64) std::atomic<std::uint32_t> consumer_sleeps{0};
  // The producer's signs of life, counted: however full the FIFO is.
  alignas(64) std::atomic<std::uint64_t> beats{0};
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

enum RingFor : std::uint32_t {
  kRingForData = 1,  // There is something to read.
  kRingForRoom = 2,  // The FIFO of the other direction has room.
  kRingForSlot = 4,  // A SyncSlot of the producer's has changed.
};

inline constexpr std::size_t kMinFifoBytes = 4096;
inline constexpr std::size_t kMaxFifoBytes = std::size_t{1} << 30;
// Bytes of the control block, before the data.
inline constexpr std::size_t kFifoControlBytes = 4096;
static_assert(sizeof(FifoControl) <= kFifoControlBytes);

// A FIFO's memory, as seen from here. Owns nothing.
struct FifoMemory {
  FifoControl* control = nullptr;
  std::byte* data = nullptr;
  std::size_t capacity = 0;  // A power of two in [kMin.., kMaxFifoBytes].
};

// The capacity for a wish of `fifo_bytes`.
std::size_t FifoCapacity(std::size_t fifo_bytes);

// The one producer's end: a stream of bytes. Room() and Write() work on what
// was last seen of the consumer; Refresh() looks again.
class FifoWriter {
 public:
  explicit FifoWriter(const FifoMemory& memory) : memory_(memory) {}

  std::size_t room() const {
    return memory_.capacity - static_cast<std::size_t>(head_ - tail_);
  }
  std::size_t unpublished() const {
    return static_cast<std::size_t>(head_ - published_);
  }
  // kDataLoss if the consumer's counter is impossible.
  Status Refresh();
  // REQUIRES bytes.size() <= room().
  void Write(std::span<const std::byte> bytes);
  // Shows the consumer what was written; ordered before later loads of
  // consumer_sleeps (both sequentially consistent).
  void Publish();

 private:
  const FifoMemory memory_;
  // Own copies: the shared ones can be overwritten by a broken peer.
  std::uint64_t head_ = 0;
  std::uint64_t published_ = 0;
  std::uint64_t tail_ = 0;
};

// The one consumer's end.
class FifoReader {
 public:
  explicit FifoReader(const FifoMemory& memory) : memory_(memory) {}

  std::size_t available() const {
    return static_cast<std::size_t>(head_ - tail_);
  }
  std::size_t unreleased() const {
    return static_cast<std::size_t>(tail_ - released_);
  }
  // kDataLoss if the producer's counter is impossible.
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
