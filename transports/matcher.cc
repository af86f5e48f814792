#include "transports/matcher.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "gradientflow/base/str_cat.h"

// How messages and their receives find each other.
//
//   Land()      a header has arrived. If a receive is posted for its id, the
//               payload lands in that buffer. Otherwise it is held here.
//   Post()      posts a receive: takes a held message or calls for an announced
//               one
//   Complete()  both are there: checks length and signature, queues the Done
//
// The way of a message that its sender has no credit to send unasked:
//
//   sender    Fabric::Send()      kAnnounce, on the lane of the message
//   receiver  OnAnnouncement()    notes it under the id of the message
//             CallFor()           the receive is posted: kClear
//   sender    Fabric::OnAnswer()  kPayload, under the id that the kClear names
//   receiver  LandCalledFor()     it lands in the buffer of the receive
//
// A message that will not be received is declined, and its send ends well: it
// is the receiver that knows what is wrong, if anything is.
//
// All these control messages are answered at once and need no credit, so lanes
// never stop.
namespace gradientflow {

using Landing = LinkEvents::Landing;

// Most often a match that is over gives its memory to the next one.
Matcher::Matches::iterator Matcher::Of(MessageId id) {
  const auto found = matches_.find(id);
  if (found != matches_.end()) return found;
  if (spare_.empty()) return matches_.try_emplace(id).first;
  spare_.key() = id;
  spare_.mapped() = Match();
  return matches_.insert(std::move(spare_)).position;
}

bool Matcher::Post(MessageId id, BufferView dst, std::uint64_t signature,
                   Done done) {
  if (IsNumberedByReceiver(id.tag)) id = arrivals_.Receive(id);
  const auto at = Of(id);
  Match& match = at->second;
  if (match.posted) {
    args_.due->Add(
        done, 0,
        Status(StatusCode::kInternal, StrCat("tag ", id.tag, " from rank ",
                                             peer_, " is already awaited")));
    return true;
  }
  match.posted = true;
  args_.receives->Post(link_, id.tag, dst.bytes);
  match.dst = dst;
  match.signature = signature;
  match.done = done;
  if (match.arrived) {
    Complete(at);
    return true;
  }
  if (match.announced && !link_.down()) CallFor(at);
  return false;
}

// Returns whether the message is the one that its receive expects; if not,
// `why` says how they differ.
bool Matcher::Fits(const Match& match, Status* why) const {
  const bool same_call = match.header.signature == match.signature;
  if (same_call && match.header.payload_bytes == match.dst.bytes) return true;
  *why =
      Status(StatusCode::kInvalidArgument,
             StrCat("rank ", peer_, " (", link_.link()->address(), ") sent ",
                    match.header.payload_bytes, " bytes, rank ", args_.rank,
                    " expected ", match.dst.bytes,
                    same_call ? ""
                              : ", and of another call: kind, dtype, operation,"
                                " count, step or place in the pool differ",
                    " (tag ", match.header.tag, ")"));
  return false;
}

Status Matcher::Stale(const Header& header) const {
  return Status(
      StatusCode::kInvalidArgument,
      StrCat("rank ", peer_, " (", link_.link()->address(), ") sent ",
             header.payload_bytes, " bytes of collective #", CallOf(header.tag),
             header.group == 0 ? "" : StrCat(" in group ", header.group),
             ", which rank ", args_.rank,
             " has finished without them: the ranks call different"
             " collectives"));
}

// The peer has broken the rules of the protocol.
Status Matcher::Broken(const std::string& what) const {
  return Status(
      StatusCode::kDataLoss,
      StrCat("rank ", peer_, " (", link_.link()->address(), ") ", what));
}

// The id that a message is matched by.
MessageId Matcher::IdOf(const Header& header) const {
  const MessageId id(header.tag, header.group);
  return IsNumberedByReceiver(id.tag) ? arrivals_.NextArrival(id) : id;
}

Result<Landing> Matcher::Land(const Header& header) {
  if (header.kind == MessageKind::kPayload) return LandCalledFor(header);
  if (header.kind == MessageKind::kData &&
      !credit_.Charge(header.payload_bytes)) {
    return Broken(StrCat("sends ", header.payload_bytes,
                         " bytes unasked, expected at most ", credit_.limit(),
                         " under way (tag ", header.tag, ")"));
  }
  const MessageId id = IdOf(header);
  Match& match = Of(id)->second;
  if (match.arriving) {
    return Broken(StrCat("sent tag ", header.tag, " twice"));
  }
  match.header = header;
  if (header.kind == MessageKind::kAnnounce) {
    match.arriving = true;
    return Landing{match.announcement.data(), false};
  }
  if (match.posted) return LandInReceive(header, &match);
  if (args_.finished->Has(id)) {
    args_.verdict->Fail(Stale(header));
    return Landing{nullptr, true};
  }
  return Hold(header, &match);
}

// A message that does not fit a point-to-point receive is held until it can be
// reported. Otherwise the job fails, and the link is kept up, so that the peer
// hears the reason, too.
Result<Landing> Matcher::LandInReceive(const Header& header, Match* match) {
  Status why;
  if (Fits(*match, &why)) {
    match->arriving = true;
    return Landing{match->dst.data, false};
  }
  if (IsPointToPoint(header.tag)) return Hold(header, match);
  args_.verdict->Fail(why);
  return Landing{nullptr, true};
}

// The length is what the peer claims, so no memory is touched before bytes
// arrive.
Result<Landing> Matcher::Hold(const Header& header, Match* match) {
  if (header.payload_bytes > 0) {
    match->held = args_.memory->Take(header.payload_bytes);
    if (match->held == nullptr) {
      return Status(
          StatusCode::kResourceExhausted,
          StrCat("rank ", peer_, " (", link_.link()->address(), ") sends ",
                 header.payload_bytes, " bytes that rank ", args_.rank,
                 " does not await and cannot hold"));
    }
  }
  match->arriving = true;
  held_bytes_ += header.payload_bytes;
  return Landing{match->held.get(), false};
}

Result<Landing> Matcher::LandCalledFor(const Header& header) {
  const auto found = matches_.find({header.tag, header.group});
  if (found == matches_.end() || !found->second.called_for ||
      found->second.landing ||
      found->second.header.payload_bytes != header.payload_bytes ||
      found->second.signature != header.signature) {
    return Broken(StrCat("sent ", header.payload_bytes, " bytes (tag ",
                         header.tag, ") that rank ", args_.rank,
                         " has not called for like this"));
  }
  Match& match = found->second;
  match.landing = true;
  match.header.flags = header.flags;
  return Landing{match.dst.data, false};
}

void Matcher::Arrive(const Header& header) {
  const bool called_for = header.kind == MessageKind::kPayload;
  const MessageId id =
      called_for ? MessageId(header.tag, header.group) : IdOf(header);
  if (header.kind == MessageKind::kAnnounce) return OnAnnouncement(id);
  if (IsNumberedByReceiver(id.tag) && !called_for) arrivals_.Arrived(id);
  const auto at = Of(id);
  at->second.arrived = true;
  if (at->second.posted) Complete(at);
}

// Hands an arrived message to its receive.
void Matcher::Complete(Matches::iterator at) {
  auto node = matches_.extract(at);
  const MessageId id = node.key();
  Match& match = node.mapped();
  args_.receives->End();
  Status status;
  const bool fits = Fits(match, &status);
  if (match.held != nullptr && fits) {
    std::memcpy(match.dst.data, match.held.get(), match.header.payload_bytes);
  }
  args_.due->Add(match.done, match.header.flags, status);
  Drop(id, &match);
  if (!fits && !IsPointToPoint(id.tag)) args_.verdict->Fail(status);
  spare_ = std::move(node);
}

// Gives back what a message that has left `matches_` used. The numbers of a
// name are forgotten if no message and no receive of it is left; a message that
// is arriving still needs its number.
void Matcher::Drop(MessageId id, Match* match) {
  const std::uint64_t bytes = match->header.payload_bytes;
  if (match->held != nullptr) {
    held_bytes_ -= bytes;
    args_.memory->Give(std::move(match->held), bytes);
  }
  if (!match->announced) {
    GiveBack(bytes);
  } else if (!match->called_for) {
    Header decline;
    decline.kind = MessageKind::kDecline;
    decline.signature = match->announced_send;
    link_.Signal(decline);
  }
  if (!IsNumberedByReceiver(id.tag)) return;
  if (match->announced) arrivals_.Over(id);
  if (!arrivals_.Even(id) || matches_.contains(arrivals_.NextArrival(id))) {
    return;
  }
  arrivals_.Forget(id);
}

// A receive has taken a message that came unasked.
void Matcher::GiveBack(std::uint64_t payload_bytes) {
  Header credit;
  credit.kind = MessageKind::kCredit;
  credit.tag = credit_.Release(payload_bytes);
  if (credit.tag > 0) link_.Signal(credit);
}

void Matcher::OnAnnouncement(MessageId id) {
  const auto at = Of(id);
  Match& match = at->second;
  const auto announcement = DecodeAnnouncement(match.announcement);
  if (!announcement.ok()) {
    args_.verdict->Fail(
        Status(announcement.status().code(),
               StrCat("rank ", peer_, " (", link_.link()->address(),
                      "): ", announcement.status().message())));
    return;
  }
  match.announced = true;
  match.announced_send = announcement.value().send;
  match.header.payload_bytes = announcement.value().bytes;
  if (IsNumberedByReceiver(id.tag)) arrivals_.Announced(id);
  if (match.posted) {
    // Only a lack of credit has kept the message from coming at once.
    if (credit_.Fits(match.header.payload_bytes)) GrowCredit();
    CallFor(at);
  } else if (args_.finished->Has(id)) {
    args_.verdict->Fail(Stale(match.header));
  } else if (declines_) {
    auto node = matches_.extract(at);
    if (IsNumberedByReceiver(id.tag)) arrivals_.Receive(id);
    Drop(id, &node.mapped());
  }
}

void Matcher::GrowCredit() {
  const std::size_t bytes = args_.budget->TakeFromReserve();
  if (bytes == 0) return;
  credit_.Grow(bytes);
  Header credit;
  credit.kind = MessageKind::kCredit;
  credit.tag = bytes;
  link_.Signal(credit);
}

// Calls for an announced message whose receive is posted.
void Matcher::CallFor(Matches::iterator at) {
  auto& [id, match] = *at;
  Status why;
  // Complete() says what is wrong, and declines.
  if (!Fits(match, &why)) return Complete(at);
  match.called_for = true;
  Header clear;
  clear.kind = MessageKind::kClear;
  clear.tag = id.tag;
  clear.group = id.group;
  clear.signature = match.announced_send;
  link_.Signal(clear);
}

std::optional<std::uint64_t> Matcher::Told(MessageId id) const {
  const auto found = matches_.find(id);
  if (found == matches_.end() || !found->second.arrived) return {};
  return found->second.header.signature;
}

bool Matcher::HasMessage(MessageId id) const {
  if (IsNumberedByReceiver(id.tag)) id = arrivals_.NextReceive(id);
  const auto found = matches_.find(id);
  return found != matches_.end() && !found->second.posted;
}

bool Matcher::HasPosted() const {
  return std::any_of(matches_.begin(), matches_.end(),
                     [](const auto& entry) { return entry.second.posted; });
}

std::uint64_t Matcher::waiting_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [id, match] : matches_) {
    if (!match.posted) bytes += match.header.payload_bytes;
  }
  return bytes;
}

void Matcher::FailIfFinished() const {
  for (const auto& [id, match] : matches_) {
    if (!match.posted && args_.finished->Has(id)) {
      args_.verdict->Fail(Stale(match.header));
    }
  }
}

// Treats them as if a receive had taken them, but tells no caller.
template <typename Which>
void Matcher::DropUnposted(const Which& which) {
  for (auto at = matches_.begin(); at != matches_.end();) {
    if (at->second.posted || !which(at->first, at->second)) {
      ++at;
      continue;
    }
    const MessageId id = at->first;
    Match dropped = std::move(at->second);
    at = matches_.erase(at);
    if (IsNumberedByReceiver(id.tag)) arrivals_.Receive(id);
    Drop(id, &dropped);
  }
}

void Matcher::CloseGroup(GroupId group) {
  DropUnposted([group](MessageId id, const Match& match) {
    return id.group == group && (match.arrived || match.announced);
  });
}

void Matcher::DeclineAll() {
  declines_ = true;
  DropUnposted([](MessageId, const Match& match) { return match.announced; });
}

void Matcher::FailAll(const Status& why) {
  for (auto& [id, match] : matches_) {
    if (!match.posted) continue;
    args_.receives->End();
    args_.due->Add(match.done, 0, why);
  }
  matches_.clear();
}

}  // namespace gradientflow
