#pragma once

#include <atomic>
#include <cstdint>

namespace gradientflow {

// Wakes one peer that sleeps. Owns nothing.
class Doorbell {
 public:
  // `peer_sleeps` is FifoControl::consumer_sleeps of the FIFO that the peer
  // reads; `socket` is the stream to the peer.
  Doorbell(int socket, std::atomic<std::uint32_t>* peer_sleeps)
      : socket_(socket), peer_sleeps_(peer_sleeps) {}

  // Sends the peer one byte if it sleeps and wants to be rung for any of
  // `reasons` (RingFor bits). Never blocks, and makes a system call only if it
  // rings. What the peer is to find must be visible before the call, in the
  // single order of sequentially consistent operations; or the caller rings
  // again after a fence, for a peer that was falling asleep.
  void Ring(std::uint32_t reasons) const {
    if (peer_sleeps_->load(std::memory_order_seq_cst) & reasons) RingNow();
  }

 private:
  void RingNow() const;

  const int socket_;
  std::atomic<std::uint32_t>* const peer_sleeps_;
};

}  // namespace gradientflow
