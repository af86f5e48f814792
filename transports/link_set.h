#pragma once

#include <vector>

#include "transports/link.h"
#include "transports/peer_link.h"

namespace gradientflow {

// The links that a rank has so far. A link that is down stays in the set.
// NOT thread-safe.
class LinkSet {
 public:
  // Takes in the link of `way`, which is borrowed. REQUIRES that there is one.
  void Add(PeerLink& way) {
    sockets_carry_data_ |= way.link()->sockets_carry_data();
    ways_.push_back(&way);
  }

  // Calls visit(link) for each link that is up, one after another. A visit may
  // take links down.
  template <typename Visit>
  void ForEachUp(const Visit& visit) const {
    for (const PeerLink* way : ways_) {
      if (way->up()) visit(*way->link());
    }
  }
  // Closes all links, up or down.
  void Close() {
    for (PeerLink* way : ways_) way->link()->Close();
  }

  // True if the sockets of any link carry data.
  bool sockets_carry_data() const { return sockets_carry_data_; }
  // Returns whether messages have yet to leave on a link that is up.
  bool HasQueued() const {
    bool queued = false;
    ForEachUp([&](const Link& link) { queued |= link.queued_messages() > 0; });
    return queued;
  }

 private:
  std::vector<PeerLink*> ways_;
  bool sockets_carry_data_ = false;
};

}  // namespace gradientflow
