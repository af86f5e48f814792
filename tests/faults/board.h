#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "gradientflow/base/status.h"

namespace gradientflow::faults {

// The phases in the life of a rank, in order.
enum class Phase : std::int32_t {
  kStarting,
  kOpening,    // Rendezvous, links, agreement, measuring.
  kBackward,   // Some buckets are in flight already.
  kFinishing,  // In FinishStep().
  kOptimizer,
  kBetween,  // Between steps.
  kClosing,
  kClosed,
};

// Nanoseconds of the steady clock, which all processes share.
std::int64_t NowNs();

// Waits without spinning: for tests and benchmarks whose subject is time.
void Pause(std::chrono::nanoseconds time);

// What a rank reports to the process that watches it. It is in memory that both
// share, so that it survives the rank.
struct alignas(64) RankReport {
  static constexpr std::size_t kTextBytes = 4096;

  std::atomic<Phase> phase{Phase::kStarting};
  std::atomic<std::uint64_t> step{0};
  // Tensors handed in, in kBackward of `step`. It is incremented before
  // GradientReady(), so no more tensors than this can have been sent.
  std::atomic<std::uint64_t> handed_in{0};
  std::atomic<std::uint64_t> wrong_sums{0};  // Elements.
  std::atomic<std::int64_t> ended_ns{0};     // SteadyClock; 0: not yet.
  std::atomic<StatusCode> code{StatusCode::kOk};
  char text[kTextBytes] = {};  // Written before ended_ns.

  void End(std::int64_t now_ns, const Status& status);
};
static_assert(std::atomic<StatusCode>::is_always_lock_free);
// benchmarks/faults/board.py has the same layout.
static_assert(sizeof(RankReport) == 4160 && sizeof(StatusCode) == 4);

}  // namespace gradientflow::faults
