#pragma once

#include <atomic>
#include <cstddef>
#include <thread>

#include "tests/collectives/executor_ranks.h"

namespace gradientflow::testing {

// Lets all ranks but `late` begin, and get as far as they can. Polls the late
// rank meanwhile.
class LateRank {
 public:
  LateRank(int late, int size) : late_(late), size_(size) {}
  void Await(TestRank* rank) {
    if (rank->rank() != late_) {
      for (int i = 0; i < 3000; ++i) rank->Poll();
      ++begun_;
      return;
    }
    while (begun_.load() < size_ - 1) {
      rank->Poll();
      std::this_thread::yield();
    }
    for (int i = 0; i < 3000; ++i) rank->Poll();
  }

 private:
  const int late_;
  const int size_;
  std::atomic<int> begun_{0};
};

// What came before its receive, and takes memory of this rank.
inline std::size_t HeldAt(TestRank& rank) {
  std::size_t bytes = 0;
  for (int r = 0; r < rank.size(); ++r) bytes += rank.fabric().held_bytes(r);
  return bytes;
}

}  // namespace gradientflow::testing
