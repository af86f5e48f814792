#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"

namespace gradientflow::rendezvous {

// Ranks that have come with another size or other settings than rank 0's. Each
// may be left over from an earlier run, whose place the right one takes. If all
// others are there and it does not come, the job has been given settings by
// which it can never run.
class Misfits {
 public:
  explicit Misfits(int ranks) : why_(static_cast<std::size_t>(ranks)) {}

  // Whoever came as `rank`, which may be any number, does not fit.
  void Note(std::size_t rank, const Status& why) {
    if (rank < why_.size()) why_[rank] = why;
  }
  // The right one has come.
  void Forget(std::size_t rank) { why_[rank] = Status(); }

  // `awaited` are the ranks that are missing now. Returns an error of one of
  // them if for a while nobody else has been missing.
  Status Check(const std::vector<int>& awaited, Clock::Time now) {
    const auto fits = [this](int rank) { return why(rank).ok(); };
    if (awaited.empty() || std::any_of(awaited.begin(), awaited.end(), fits)) {
      since_ = now;
    }
    return now - since_ < kPatience ? Status() : why(awaited.front());
  }

 private:
  static constexpr std::chrono::seconds kPatience{3};

  const Status& why(int rank) const {
    return why_[static_cast<std::size_t>(rank)];
  }

  std::vector<Status> why_;  // By rank; OK if it fits or has not come.
  Clock::Time since_{};      // When somebody else was missing last.
};

}  // namespace gradientflow::rendezvous
