#include "transports/shm/doorbell.h"

#include <sys/socket.h>

namespace gradientflow {

void Doorbell::RingNow() const {
  // Only the caller that clears the mark rings, so each sleep gets a single
  // byte.
  if (peer_sleeps_->exchange(0, std::memory_order_seq_cst) == 0) return;
  const char byte = 1;
  // If the socket is full, the bytes in it wake the peer as well. If it is
  // broken, the poller will tell.
  (void)!::send(socket_, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace gradientflow
