#pragma once

#include <cstddef>
#include <string>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "transports/tcp/socket.h"

namespace gradientflow {

// Lets in who connects to a listener, which anybody may. Who has proven nothing
// makes room for the next, the oldest first, and that descriptors run out is no
// error: some of those inside may be strangers', or it may pass.
class Door {
 public:
  class Guests {
   public:
    virtual ~Guests() = default;
    // As many are inside as may be.
    virtual bool full() const = 0;
    // Closes the oldest connection that has proven nothing. Whether there was
    // one.
    virtual bool DropOldestStranger() = 0;
    virtual void Admit(Socket socket) = 0;
  };

  // Some of those that wait at `listener`: the guests are heard before the next
  // call, so that a peer among strangers proves what it is before it is old.
  void AcceptSome(const Socket& listener, Clock::Time now, Guests* guests);

  // What to poll() for the listener: -1, nothing, for a moment after one could
  // not be let in, since it still waits there.
  int DescriptorOf(const Socket& listener, Clock::Time now) const {
    return now < closed_until_ ? -1 : listener.fd();
  }

  // "; not all that knocked could be let in: accept: Too many open files", or
  // "" while all could.
  std::string Trouble() const;

 private:
  Clock::Time closed_until_{};
  std::string trouble_;
};

}  // namespace gradientflow
