#include "transports/shm/doorbell.h"

#include <sys/socket.h>

namespace gradientflow {

void Doorbell::RingNow() const {
  // Only who takes the mark away rings: one byte for each sleep.
  if (peer_sleeps_->exchange(0, std::memory_order_seq_cst) == 0) return;
  const char byte = 1;
  // A full socket holds bytes that wake the peer as well, and of a broken one
  // the poller tells.
  (void)!::send(socket_, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace gradientflow
