#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/link.h"
#include "transports/rdma/rdma_link.h"
#include "transports/remote_places.h"
#include "transports/wire.h"

namespace gradientflow {

// Tells RDMA links what their control links tell, which are made before them.
// Set-up frames have the number of their rail; all else is the first rail's.
//
//   TCP to peer p ─> RdmaRelay ─> p's RdmaLink of that rail
//
// NOT thread-safe.
class RdmaRelay final : public LinkEvents {
 public:
  explicit RdmaRelay(int ranks) : peers_(static_cast<std::size_t>(ranks)) {}

  // Borrows `link` until it is replaced. A control link that has gone down
  // meanwhile says so now. If `link` is null, the rail is left out.
  void SetLink(int peer, std::size_t rail, RdmaLink* link);

  Result<Landing> OnHeader(int peer, int lane, const Header& header) override;
  void OnMessage(int peer, int lane, const Header& header) override;
  void OnDown(int peer, const Status& why) override;

 private:
  struct Peer {
    std::array<RdmaLink*, kMostRails> links = {};
    Status lost;
  };
  Peer& At(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
  // Null if the rail is left out, or is none.
  RdmaLink* Find(int peer, const Header& header);

  std::vector<Peer> peers_;
};

}  // namespace gradientflow
