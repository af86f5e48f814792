#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "gradientflow/observe/recorder.h"

namespace gradientflow {

// A bounded queue of spans for many producers and one consumer at a time, after
// D. Vyukov's array queue: each cell's `turn` says who may use it. All memory
// is allocated in the constructor. A producer that is descheduled inside Push()
// hides the spans behind its own from Pop() until it runs again, but blocks no
// thread.
class SpanQueue {
 public:
  // `capacity` is rounded up to a power of two of at least 2.
  explicit SpanQueue(std::size_t capacity)
      : mask_(RoundUp(capacity) - 1),
        cells_(std::make_unique<Cell[]>(mask_ + 1)) {
    for (std::size_t i = 0; i <= mask_; ++i) {
      cells_[i].turn.store(i, std::memory_order_relaxed);
    }
  }

  // May be called on any thread; lock-free. Returns false if the queue is full.
  bool Push(const Span& span) noexcept {
    std::uint64_t at = tail_.load(std::memory_order_relaxed);
    while (true) {
      Cell& cell = cells_[at & mask_];
      const std::uint64_t turn = cell.turn.load(std::memory_order_acquire);
      if (turn < at) return false;  // Still holds a span of the last lap.
      if (turn > at) {              // Another producer was faster.
        at = tail_.load(std::memory_order_relaxed);
        continue;
      }
      if (!tail_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) {
        continue;
      }
      cell.span = span;
      cell.turn.store(at + 1, std::memory_order_release);
      return true;
    }
  }

  // One thread at a time. Returns false if the queue is empty.
  bool Pop(Span* span) noexcept {
    Cell& cell = cells_[head_ & mask_];
    if (cell.turn.load(std::memory_order_acquire) != head_ + 1) return false;
    *span = cell.span;
    cell.turn.store(head_ + mask_ + 1, std::memory_order_release);
    ++head_;
    return true;
  }

  std::size_t capacity() const { return mask_ + 1; }

 private:
  struct Cell {
    // i if the cell is free for the producer of span i; i + 1 if it holds span
    // i.
    std::atomic<std::uint64_t> turn{0};
    Span span;
  };

  static std::size_t RoundUp(std::size_t capacity) {
    std::size_t power = 2;
    while (power < capacity) power *= 2;
    return power;
  }

  const std::size_t mask_;
  const std::unique_ptr<Cell[]> cells_;
  alignas(64) std::atomic<std::uint64_t> tail_{0};
  alignas(64) std::uint64_t head_ = 0;
};

}  // namespace gradientflow
