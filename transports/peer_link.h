#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transports/link.h"
#include "transports/tags.h"
#include "transports/wire.h"

namespace gradientflow {

// The way to one peer: its link or, until there is one, the messages that wait
// for it. Control messages are sent at once or not at all; their texts are kept
// here until they have left. NOT thread-safe.
class PeerLink {
 public:
  PeerLink() = default;
  PeerLink(const PeerLink&) = delete;
  PeerLink& operator=(const PeerLink&) = delete;

  // Null if the peer is not linked.
  Link* link() const { return link_.get(); }
  // There is a link now: the messages that wait for it leave.
  void Connect(std::unique_ptr<Link> link);

  // The peer is gone, or accepts no link. A peer that was never linked may turn
  // up all the same.
  bool down() const { return down_; }
  void SetDown(bool down) { down_ = down; }
  bool up() const { return link_ != nullptr && !down_; }
  // Whether the link has been asked for.
  bool asked() const { return asked_; }
  void SetAsked() { asked_ = true; }

  // The lane of `link` that a data message of `bytes` takes.
  static int LaneOf(Link& link, Tag tag, std::uint64_t bytes);
  // The lane on which Link::Look() finds such a message from the peer; -1 if it
  // finds none.
  static int LaneToLook(const Link& link, Tag tag, std::uint64_t bytes);
  // Keeps a message until there is a link. REQUIRES that there is none.
  void Keep(const OutMessage& message);
  bool keeps_any() const { return !kept_.empty(); }
  // Forgets them. Their Dones do not run.
  void DropKept() { kept_.clear(); }

  // Sends a number in a message without payload, on its lane, or keeps it until
  // there is a link.
  void Tell(MessageId id, std::uint64_t number);
  // Sends a control message without payload, unless the peer is down. A peer
  // that has said good-bye may only have answered this rank's good-bye, and
  // still await the message.
  void Signal(const Header& header);
  // Sends `text`, cut at kMaxControlBytes, in a control message, unless too
  // many texts are on their way.
  void Say(MessageKind kind, std::string text, Tag tag = 0);
  // Texts and told numbers that have not left.
  std::size_t control_queued() const { return texts_.size(); }

 private:
  Done Leaving(std::string text, const std::string** kept);
  static void OnLeft(void* self, std::uint64_t cookie, std::uint32_t,
                     const Status&);

  std::unique_ptr<Link> link_;
  bool asked_ = false;
  bool down_ = false;
  std::vector<OutMessage> kept_;
  std::unordered_map<std::uint64_t, std::string> texts_;  // By cookie.
  std::uint64_t next_text_ = 0;
};

}  // namespace gradientflow
