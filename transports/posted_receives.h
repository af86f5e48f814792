#pragma once

#include <cstddef>
#include <cstdint>

#include "transports/link.h"
#include "transports/peer_link.h"
#include "transports/wire.h"

namespace gradientflow {

// The receives of a rank that wait for a message, of all peers. While there is
// a single one, its message is most likely what comes next, so its lane can be
// read without asking the Poller first: one system call instead of two. NOT
// thread-safe.
class PostedReceives {
 public:
  // A receive waits for the message `tag` of `bytes`, which comes by `from`.
  void Post(const PeerLink& from, Tag tag, std::uint64_t bytes) {
    ++count_;
    only_from_ = count_ == 1 ? &from : nullptr;
    only_tag_ = tag;
    only_bytes_ = bytes;
  }
  // One of them has ended.
  void End() { --count_; }
  std::size_t count() const { return count_; }

  // Reads what has come on the lane of the only receive, and sets `*moved` if
  // anything has. Returns false if the Poller has to be asked as well. It
  // also returns false now and then in any case, since other peers may have
  // sent what no receive awaits.
  bool Look(bool* moved) {
    if (count_ != 1 || only_from_ == nullptr || !only_from_->up()) return false;
    Link& link = *only_from_->link();
    const int lane = PeerLink::LaneToLook(link, only_tag_, only_bytes_);
    if (lane < 0) return false;
    *moved |= link.Look(lane);
    const bool arrived = count_ == 0;
    if (++looks_ < (arrived ? kMostLooks : kLooksPerQuestion)) return true;
    looks_ = 0;
    return false;
  }

 private:
  // If the message has arrived, answering it is more urgent than the question.
  static constexpr std::uint32_t kLooksPerQuestion = 8;
  static constexpr std::uint32_t kMostLooks = 64;

  std::size_t count_ = 0;
  // The way by which the message of the last posted receive comes; null if
  // other receives were posted then. So it is the way of the only receive while
  // count_ is 1.
  const PeerLink* only_from_ = nullptr;
  Tag only_tag_ = 0;
  std::uint64_t only_bytes_ = 0;
  std::uint32_t looks_ = 0;
};

}  // namespace gradientflow
