#include <algorithm>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/fabric.h"

// How a fabric gets the links that it did not have at the beginning.
//
//   Send()    to a peer that is not linked keeps the message, and asks
//   Tick()    asks for the peers that receives wait for
//   OnLink()  the link is there, whichever side asked: messages leave
//   OnGone()  the peer is not there any more (fabric_life.cc)
//
// A peer that is asked for has the heartbeat time-out to answer, as one that is
// linked has.
namespace gradientflow {
namespace {

// Numbers that wait to be told to one peer. There is a limit, so that a rank
// that keeps opening and closing sessions cannot fill its memory.
constexpr std::size_t kMostUntold = 1024;

}  // namespace

void Fabric::Connect(std::vector<std::unique_ptr<Link>> links,
                     std::unique_ptr<LinkSource> source) {
  source_ = std::move(source);
  for (int r = 0; r < size_; ++r) {
    peers_[r].heard = clock_.Now();
    if (links[r] != nullptr) Add(r, std::move(links[r]));
  }
}

void Fabric::Add(int peer, std::unique_ptr<Link> link) {
  Peer& to = peers_[peer];
  to.link = std::move(link);
  to.heard = clock_.Now();
  sockets_carry_data_ |= to.link->sockets_carry_data();
  linked_.push_back(&to);
}

std::string Fabric::AddressOf(int peer) const {
  if (peers_[peer].link != nullptr) return peers_[peer].link->address();
  return source_ == nullptr ? "not linked" : source_->AddressOf(peer);
}

void Fabric::AskForLink(int peer) {
  Peer& to = peers_[peer];
  if (to.link != nullptr || to.down || to.asked || peer == rank_) return;
  if (source_ == nullptr) {
    Fail(Status(StatusCode::kInternal,
                StrCat("rank ", rank_, " has no link to rank ", peer,
                       ", nor a way to make one")));
    return;
  }
  to.asked = true;
  to.heard = clock_.Now();
  source_->Dial(peer);
}

void Fabric::AskForAwaited() {
  for (int r = 0; r < size_; ++r) {
    const Peer& peer = peers_[r];
    if (peer.link == nullptr && !peer.asked && HasPosted(peer)) AskForLink(r);
  }
}

// Keeps a message for a peer that is not linked.
void Fabric::WaitForLink(int peer, const OutMessage& message) {
  Peer& to = peers_[peer];
  if (!to.asked && to.unsent.size() >= kMostUntold) {
    const OutMessage oldest = to.unsent.front();
    to.unsent.erase(to.unsent.begin());
    oldest.done(Status());
  }
  to.unsent.push_back(message);
}

void Fabric::OnLink(int peer, std::unique_ptr<Link> link) {
  Peer& to = peers_[peer];
  if (torn_down_ || to.link != nullptr) return;
  // It refused this rank, but was not gone.
  if (std::exchange(to.down, false)) --departed_;
  if (!suspect_.ok() && suspect_peer_ == peer) SuspectAnother();
  to.left = false;
  Add(peer, std::move(link));
  for (const OutMessage& message : std::exchange(to.unsent, {})) {
    to.link->Send(LaneOf(*to.link, message.header.tag), message);
  }
  if (said_bye_) SendControl(peer, MessageKind::kBye, "");
}

}  // namespace gradientflow
