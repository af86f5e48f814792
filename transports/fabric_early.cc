#include <algorithm>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/fabric.h"

// How a message reaches a rank that may not await it yet, if its sender has no
// credit to send it unasked:
//
//   sender    Send()            kAnnounce, on the lane of the message
//   receiver  OnAnnouncement()  notes it under the id of the message
//             CallFor()         the receive is posted: kClear
//   sender    OnAnswer()        kPayload, under the id that the kClear names
//   receiver  LandPayload()     the payload lands in the buffer of the receive
//
// A message that will not be received is declined, and its send ends well: it
// is the receiver that knows what is wrong, if anything is.
//
// Everything here is answered when it arrives and waits for no credit, so lanes
// never stand still.
namespace gradientflow {

// Says something that has no payload. A peer that has said good-bye may have
// only answered to this rank's, and still await what is said.
void Fabric::Signal(int peer, const Header& header) {
  Peer& to = peers_[peer];
  if (to.link == nullptr || to.down) return;
  OutMessage message;
  message.header = header;
  to.link->Send(0, message);
}

void Fabric::OnAnnouncement(int peer, MessageId id) {
  Peer& from = peers_[peer];
  Match& match = from.matches[id];
  const auto announcement = DecodeAnnouncement(match.announcement);
  if (!announcement.ok()) {
    return Fail(Status(announcement.status().code(),
                       StrCat("rank ", peer, " (", from.link->address(),
                              "): ", announcement.status().message())));
  }
  match.announced = true;
  match.announced_send = announcement.value().send;
  match.header.payload_bytes = announcement.value().bytes;
  if (IsNumberedByReceiver(id.tag)) from.arrivals.Announced(id);
  if (match.posted) {
    // Only a lack of credit has kept the message from coming at once.
    if (from.to_receive.Fits(match.header.payload_bytes)) GrowCredit(peer);
    CallFor(peer, id);
  } else if (IsStale(id)) {
    Fail(StaleMessage(peer, match.header));
  } else if (leaving_) {
    auto node = from.matches.extract(id);
    if (IsNumberedByReceiver(id.tag)) from.arrivals.Receive(id);
    Drop(peer, id, &node.mapped());
  }
}

void Fabric::GrowCredit(int peer) {
  const std::size_t bytes = early_.TakeFromReserve();
  if (bytes == 0) return;
  peers_[peer].to_receive.Grow(bytes);
  Header credit;
  credit.kind = MessageKind::kCredit;
  credit.tag = bytes;
  Signal(peer, credit);
}

// Calls for an announced message whose receive is posted.
void Fabric::CallFor(int peer, MessageId id) {
  Match& match = peers_[peer].matches[id];
  Status why;
  // Complete() says what is wrong, and declines.
  if (!Check(peer, match, &why)) return Complete(peer, id);
  match.called_for = true;
  Header clear;
  clear.kind = MessageKind::kClear;
  clear.tag = id.tag;
  clear.group = id.group;
  clear.signature = match.announced_send;
  Signal(peer, clear);
}

void Fabric::Decline(int peer, const Match& match) {
  Header decline;
  decline.kind = MessageKind::kDecline;
  decline.signature = match.announced_send;
  Signal(peer, decline);
}

// This rank will post no more receives.
void Fabric::DeclineAll() {
  for (int r = 0; r < size_; ++r) {
    auto& matches = peers_[r].matches;
    for (auto at = matches.begin(); at != matches.end();) {
      if (at->second.posted || !at->second.announced) {
        ++at;
        continue;
      }
      const MessageId id = at->first;
      Match dropped = std::move(at->second);
      at = matches.erase(at);
      if (IsNumberedByReceiver(id.tag)) peers_[r].arrivals.Receive(id);
      Drop(r, id, &dropped);
    }
  }
}

// The peer calls for a message that this rank has announced, or declines it.
void Fabric::OnAnswer(int peer, const Header& header) {
  const std::uint64_t slot = header.signature;
  if (slot >= sends_.size() || sends_[slot].peer != peer ||
      !sends_[slot].announced) {
    return Fail(Status(
        StatusCode::kDataLoss,
        StrCat("rank ", peer, " (", peers_[peer].link->address(),
               ") answers to message ", slot, ", expected one that rank ",
               rank_, " has announced to it")));
  }
  sends_[slot].announced = false;
  if (header.kind == MessageKind::kDecline) {
    OnSent(this, slot, 0, Status());
  } else {
    Link& link = *peers_[peer].link;
    link.Send(LaneOf(link, header.tag), MessageOf(slot, MessageKind::kPayload,
                                                  {header.tag, header.group}));
  }
}

Result<LinkEvents::Landing> Fabric::LandPayload(int peer,
                                                const Header& header) {
  Peer& from = peers_[peer];
  const auto found = from.matches.find({header.tag, header.group});
  if (found == from.matches.end() || !found->second.called_for ||
      found->second.landing ||
      found->second.header.payload_bytes != header.payload_bytes ||
      found->second.signature != header.signature) {
    return Status(
        StatusCode::kDataLoss,
        StrCat("rank ", peer, " (", from.link->address(), ") sent ",
               header.payload_bytes, " bytes (tag ", header.tag, ") that rank ",
               rank_, " has not called for like this"));
  }
  Match& match = found->second;
  match.landing = true;
  match.header.flags = header.flags;
  return Landing{match.dst.data, false};
}

void Fabric::OnCredit(int peer, std::uint64_t bytes) {
  CreditToSend& credit = peers_[peer].to_send;
  if (credit.Add(bytes, options_.early_bytes)) return;
  Fail(Status(
      StatusCode::kDataLoss,
      StrCat("rank ", peer, " (", peers_[peer].link->address(), ") gives rank ",
             rank_, " credit for ", bytes, " bytes on top of ", credit.left(),
             ", expected at most ", options_.early_bytes, " together")));
}

// A receive has taken a message that came unasked.
void Fabric::GiveBack(int peer, std::uint64_t payload_bytes) {
  Header credit;
  credit.kind = MessageKind::kCredit;
  credit.tag = peers_[peer].to_receive.Release(payload_bytes);
  if (credit.tag > 0) Signal(peer, credit);
}

// A peer that has said good-bye answers, too: it stays until this rank says it.
bool Fabric::AwaitsAnswers() const {
  return std::any_of(sends_.begin(), sends_.end(), [&](const Lent& lent) {
    return lent.announced && !peers_[lent.peer].down;
  });
}

std::uint64_t Fabric::waiting_bytes(int peer) const {
  std::uint64_t bytes = 0;
  for (const auto& [id, match] : peers_[peer].matches) {
    if (!match.posted) bytes += match.header.payload_bytes;
  }
  return bytes;
}

}  // namespace gradientflow
