#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/link.h"

namespace gradientflow {

// Makes links while a job runs, for a fabric that was not linked to all ranks
// when it opened. Either rank of a pair may ask for their link, or both at the
// same time: both get one end of the same link.
// NOT thread-safe: driven by the thread that drives the fabric.
class LinkSource {
 public:
  // Whom a source tells what became of a link: the fabric. Called only from
  // LinkSource::Poll() or Poller::Poll().
  class Sink {
   public:
    virtual ~Sink() = default;
    // There is a link to `peer`, which either side may have asked for. Called
    // at most once per peer.
    virtual void OnLink(int peer, std::unique_ptr<Link> link) = 0;
    // `peer`, which this rank has dialled, accepts no links any more, so it has
    // left the job or its process has ended. The source gives it up.
    virtual void OnGone(int peer, const Status& why) = 0;
    // This rank cannot go on, for example for want of file descriptors.
    virtual void OnFailed(const Status& why) = 0;
  };

  virtual ~LinkSource() = default;

  // Where ranks can be reached: addresses[r] is Endpoint::address() of rank r,
  // or empty if that is not known. May be called several times; an address that
  // is known stays. kInvalidArgument names the rank whose address is wrong.
  virtual Status Learn(const std::vector<std::string>& addresses) = 0;

  // Asks for the link to `peer`, which ends in OnLink(), OnGone() or
  // OnFailed(), but not within this call. A rank whose address is not known yet
  // is dialled once it is. There is no time-out here: the fabric has one. A
  // second call for the same peer has no effect.
  virtual void Dial(int peer) = 0;

  // For error messages: the peer's address if it is known, and the last problem
  // with its link, or "".
  virtual std::string AddressOf(int peer) const = 0;
  virtual std::string TroubleWith(int peer) const = 0;

  // Does what is due, without blocking. Returns whether anything moved. Cheap
  // if nothing is under way.
  virtual bool Poll() = 0;
  // Returns whether a link is being made, or a connection waits to be accepted,
  // so that Poll() must be called soon, again and again.
  virtual bool busy() const = 0;
  // How long the driving thread may sleep, if it is not woken by the Poller
  // before that.
  virtual std::chrono::nanoseconds Patience() const = 0;
};

}  // namespace gradientflow
