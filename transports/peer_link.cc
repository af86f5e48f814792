#include "transports/peer_link.h"

#include <algorithm>

namespace gradientflow {
namespace {

// Numbers that wait to be told to one peer. There is a limit, so that a rank
// that keeps opening and closing sessions cannot fill its memory.
constexpr std::size_t kMostUntold = 1024;
// Keeps a peer that reads nothing from filling this rank's memory. Queued data
// does not count, since it says nothing about the control lane.
constexpr std::size_t kMostControlQueued = 1024;

// A message of up to this length is over so soon that the next one gains little
// from another connection, whose state would have to come into the cache.
constexpr std::uint64_t kSmallBytes = 8192;

std::uint64_t SpreadOf(Tag tag, std::uint64_t bytes) {
  if (!IsPointToPoint(tag)) return SegmentOf(tag);
  const bool one_lane = IsNumberedByReceiver(tag) || bytes <= kSmallBytes;
  return one_lane ? NamedTag(tag) : tag;
}

}  // namespace

// With several lanes, lane 0 is left to control messages, which data must not
// delay. The messages of a segment share a lane if the lanes are fixed. Those
// of a name that the receiver numbers share one in any case. Any lane will do
// for a message that its sender has numbered; small ones of a name share one.
int PeerLink::LaneOf(Link& link, Tag tag, std::uint64_t bytes) {
  const std::uint64_t spread = SpreadOf(tag, bytes);
  return IsNumberedByReceiver(tag) ? link.FixedLane(spread)
                                   : link.DataLane(spread);
}

int PeerLink::LaneToLook(const Link& link, Tag tag, std::uint64_t bytes) {
  return link.LaneToLook(SpreadOf(tag, bytes));
}

void PeerLink::Connect(std::unique_ptr<Link> link) {
  link_ = std::move(link);
  for (const OutMessage& message : std::exchange(kept_, {})) {
    const Header& header = message.header;
    link_->Send(LaneOf(*link_, header.tag, header.payload_bytes), message);
  }
}

// If nobody has asked for the link, only numbers wait, and the oldest of them
// is of the least use.
void PeerLink::Keep(const OutMessage& message) {
  if (!asked_ && kept_.size() >= kMostUntold) {
    const OutMessage oldest = kept_.front();
    kept_.erase(kept_.begin());
    oldest.done(Status());
  }
  kept_.push_back(message);
}

// Keeps the text of a message until its Done, which it returns, has run.
Done PeerLink::Leaving(std::string text, const std::string** kept) {
  const std::uint64_t cookie = next_text_++;
  *kept = &texts_.emplace(cookie, std::move(text)).first->second;
  return {&PeerLink::OnLeft, this, cookie};
}

void PeerLink::OnLeft(void* self, std::uint64_t cookie, std::uint32_t,
                      const Status&) {
  static_cast<PeerLink*>(self)->texts_.erase(cookie);
}

void PeerLink::Tell(MessageId id, std::uint64_t number) {
  const std::string* none = nullptr;
  OutMessage message;
  message.header.kind = MessageKind::kData;
  message.header.tag = id.tag;
  message.header.group = id.group;
  message.header.signature = number;
  message.done = Leaving("", &none);
  if (link_ == nullptr) return Keep(message);
  link_->Send(LaneOf(*link_, id.tag, 0), message);
}

void PeerLink::Signal(const Header& header) {
  if (!up()) return;
  OutMessage message;
  message.header = header;
  link_->Send(0, message);
}

void PeerLink::Say(MessageKind kind, std::string text, Tag tag) {
  if (!up() || texts_.size() >= kMostControlQueued) return;
  text.resize(std::min<std::size_t>(text.size(), kMaxControlBytes));
  const std::string* kept = nullptr;
  OutMessage message;
  message.done = Leaving(std::move(text), &kept);
  message.header.kind = kind;
  message.header.tag = tag;
  message.header.payload_bytes = kept->size();
  message.payload = {
      reinterpret_cast<const std::byte*>(kept->data()), kept->size(), {}};
  link_->Send(0, message);
}

}  // namespace gradientflow
