#pragma once

#include <poll.h>

#include <map>
#include <utility>
#include <vector>

#include "gradientflow/base/fd.h"
#include "gradientflow/base/status.h"

namespace gradientflow {

// One descriptor that is readable while any of a changing set of descriptors is
// ready, so that a Poller wakes up for sockets that come and go. poll()
// says which of them it is. NOT thread-safe.
class ReadySet {
 public:
  static Result<ReadySet> Create();

  int fd() const { return epoll_.get(); }

  // Replaces the set. Negative descriptors are left out, as by poll(). REQUIRES
  // that those of the last call which are missing have been closed or
  // forgotten. Their numbers may be in use again, here or elsewhere.
  Status Watch(const std::vector<pollfd>& wanted);
  // Takes out a descriptor that stays open.
  void Forget(int fd);

 private:
  explicit ReadySet(Fd epoll) : epoll_(std::move(epoll)) {}

  Fd epoll_;
  std::map<int, short> watched_;  // By descriptor: events, as for poll().
};

}  // namespace gradientflow
