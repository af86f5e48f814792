#pragma once

#include <cstdint>
#include <utility>

// The lanes of a link that the Poller does not watch for input, because the
// thread that drives keeps looking at one of them and finds what comes by
// itself. While a connection is watched, each packet that arrives tells the
// Poller so, which takes the kernel some 0.15 us before the thread can have it.
//
//   64 Look()s                   the lane of the last one is no longer watched
//   two Poll()s without Look()   the second one, and each one after it, reads
//                                the unwatched lanes
//   8 of them, a sleep, a tick   all lanes are watched again
//
// A thread that sends and then waits for the answer polls twice and then looks,
// so what it waits for is found by a look.
namespace gradientflow {

// The lanes of one link are numbered from 0 to 63, and a set of them is a word
// of bits. NOT thread-safe.
class UnwatchedLanes {
 public:
  // The thread looks at `lane`. Returns whether the lane is unwatched from here
  // on, and was not before.
  bool Look(int lane) {
    looked_ = true;
    const std::uint64_t bit = std::uint64_t{1} << lane;
    if ((lanes_ & bit) != 0 || ++looks_ < kLooks) return false;
    lanes_ |= bit;
    looks_ = 0;
    return true;
  }
  // The link is polled. Returns the lanes that it has to read.
  std::uint64_t Poll() {
    if (std::exchange(looked_, false)) {
      unlooked_ = 0;
    } else if (unlooked_ < kUnlooked) {
      ++unlooked_;
    } else {
      looks_ = 0;
    }
    return unlooked_ > 1 || ++polls_ % kPollsPerRead == 0 ? lanes_ : 0;
  }
  // Whether they should be watched again.
  bool stale() const { return lanes_ != 0 && unlooked_ >= kUnlooked; }
  // Returns all of them, and none is unwatched any more.
  std::uint64_t TakeAll() {
    looks_ = 0;
    return std::exchange(lanes_, 0);
  }

 private:
  // A lane that is no longer watched, and then is again, costs two system
  // calls. After so many looks, of one each, they do not count.
  static constexpr int kLooks = 64;
  static constexpr int kUnlooked = 8;
  // The thread may look at only one of several unwatched lanes.
  static constexpr std::uint32_t kPollsPerRead = 8;

  std::uint64_t lanes_ = 0;
  int looks_ = 0;
  int unlooked_ = 0;     // Poll()s in a row without a Look() before them.
  bool looked_ = false;  // Since the last Poll().
  std::uint32_t polls_ = 0;
};

}  // namespace gradientflow
