#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transports/tcp/socket.h"

// The lanes of a link that go through different networks: rails. A fixed
// division would make all of them as slow as the slowest, and what drivers say
// of rates may be wrong. So the sender decides for each message:
//
//   least waiting  it takes the lane with the fewest waiting messages. A lane
//                  whose connection is full keeps its messages waiting, so each
//                  rail gets as many as it carries
//   far too slow   a rail with less than a quarter of the best one's rate, as
//                  the kernel has measured it, would hold up the last messages
//                  of every call for longer than it helps: it gets no more
namespace gradientflow {

// What the kernel says of a connection.
struct RailRate {
  std::uint64_t bytes = 0;  // Carried so far.
  std::uint64_t bytes_per_second = 0;
  bool full = false;  // It always had something to send.
};

// Which rails are far too slow. Once one is, it stays so; the best never is.
class SlowRails {
 public:
  explicit SlowRails(std::size_t rails) : slow_(rails), strikes_(rails) {}

  bool operator[](std::size_t rail) const { return slow_[rail]; }

  // Takes one look at all rails; of those that are slow already, nothing is
  // read.
  void Look(const std::vector<RailRate>& rates);

 private:
  std::vector<bool> slow_;
  std::vector<int> strikes_;
};

class Rails {
 public:
  // `lanes` are the connected data lanes of a link, at least one, and outlive
  // the object.
  explicit Rails(std::vector<const Socket*> lanes);

  // Whether the lanes go through more than one network, that is, whether they
  // have different addresses at either end.
  bool several() const { return several_; }

  // Returns the index of the lane for the next message. `waiting(i)` is the
  // number of messages that wait for lane i. Among equals, the next one from
  // `first` on is taken.
  template <typename Waiting>
  std::size_t Pick(std::uint64_t first, const Waiting& waiting) {
    if (++picks_ % kPicksPerLook == 0) DropSlow();
    const std::size_t n = lanes_.size();
    std::size_t best = n;
    for (std::size_t i = 0; i < n; ++i) {
      const auto lane = static_cast<std::size_t>((first + i) % n);
      if (!slow_[lane] && (best == n || waiting(lane) < waiting(best))) {
        best = lane;
      }
    }
    return best;
  }

 private:
  static constexpr std::uint64_t kPicksPerLook = 64;

  void DropSlow();

  const std::vector<const Socket*> lanes_;
  SlowRails slow_;
  bool several_ = false;
  std::uint64_t picks_ = 0;
};

}  // namespace gradientflow
