#pragma once

#include <cstddef>
#include <string>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "transports/tcp/socket.h"

namespace gradientflow {

// Accepts the connections to a listener, which anyone may open. A connection
// that has not proven that it belongs to the job makes room for the next one,
// the oldest first. Running out of descriptors is no error: strangers may hold
// some of them, and the shortage may pass.
class Door {
 public:
  class Guests {
   public:
    virtual ~Guests() = default;
    // Returns whether no more connections may be admitted.
    virtual bool full() const = 0;
    // Closes the oldest connection that has proven nothing. Returns whether
    // there was one.
    virtual bool DropOldestStranger() = 0;
    virtual void Admit(Socket socket) = 0;
  };

  // Accepts some of the connections that wait at `listener`. The caller must
  // hear the guests before the next call, so that a peer among strangers proves
  // what it is before it is the oldest.
  void AcceptSome(const Socket& listener, Clock::Time now, Guests* guests);

  // The descriptor to poll() for the listener. It is -1 for a moment after a
  // connection could not be accepted, since that connection is still waiting.
  int DescriptorOf(const Socket& listener, Clock::Time now) const {
    return now < closed_until_ ? -1 : listener.fd();
  }

  // Returns "; not all that knocked could be let in: accept: Too many open
  // files", or "" if all could be accepted.
  std::string Trouble() const;

 private:
  Clock::Time closed_until_{};
  std::string trouble_;
};

}  // namespace gradientflow
