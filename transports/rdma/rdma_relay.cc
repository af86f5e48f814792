#include "transports/rdma/rdma_relay.h"

#include "gradientflow/base/str_cat.h"

namespace gradientflow {

void RdmaRelay::SetLink(int peer, std::size_t rail, RdmaLink* link) {
  Peer& of = At(peer);
  of.links[rail] = link;
  if (link != nullptr && !of.lost.ok()) link->OnDown(peer, of.lost);
}

Result<LinkEvents::Landing> RdmaRelay::OnHeader(int peer, int lane,
                                                const Header& header) {
  if (At(peer).links.front() == nullptr) return Landing{nullptr, true};
  RdmaLink* const link = Find(peer, header);
  if (link != nullptr) return link->OnHeader(peer, lane, header);
  return Status(StatusCode::kDataLoss,
                StrCat("rank ", peer, ": sent an RDMA set-up frame for rail ",
                       header.tag, ", expected none"));
}

void RdmaRelay::OnMessage(int peer, int lane, const Header& header) {
  // A rail may be left out while a frame for it is still coming in.
  RdmaLink* const link = Find(peer, header);
  if (link != nullptr) link->OnMessage(peer, lane, header);
}

// What has come by any rail is taken before one of them ends all.
void RdmaRelay::OnDown(int peer, const Status& why) {
  Peer& of = At(peer);
  if (of.links.front() == nullptr) of.lost = why;
  for (RdmaLink* const link : of.links) {
    if (link != nullptr) link->TakeTheRest();
  }
  for (RdmaLink* const link : of.links) {
    if (link != nullptr) link->OnDown(peer, why);
  }
}

RdmaLink* RdmaRelay::Find(int peer, const Header& header) {
  const Tag rail = header.kind == MessageKind::kRail ? header.tag : 0;
  return rail < kMostRails ? At(peer).links[rail] : nullptr;
}

}  // namespace gradientflow
