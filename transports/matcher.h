#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/done.h"
#include "gradientflow/base/status.h"
#include "transports/arrivals.h"
#include "transports/early_credit.h"
#include "transports/finished_calls.h"
#include "transports/held_memory.h"
#include "transports/job_verdict.h"
#include "transports/link.h"
#include "transports/peer_link.h"
#include "transports/posted_receives.h"
#include "transports/tags.h"
#include "transports/wire.h"

namespace gradientflow {

// What the matchers of a rank share. All are borrowed, and outlive them.
struct MatcherArgs {
  int rank = 0;
  JobVerdict* verdict = nullptr;
  const FinishedCalls* finished = nullptr;
  HeldMemory* memory = nullptr;
  EarlyBudget* budget = nullptr;
  DoneQueue* due = nullptr;  // The Dones that are to run.
  PostedReceives* receives = nullptr;
};

// Matches the messages of one peer with their receives, in whatever order the
// two come. A message that comes before its receive is held, if the peer had
// credit to send it unasked (early_credit.h); otherwise only its announcement
// has come, and the message is called for when its receive is posted.
//
// A message that breaks the rules of the protocol fails its link. A message of
// a collective that does not fit its receive, or that belongs to a finished
// call, fails the job. A point-to-point message that does not fit fails only
// its receive.
// NOT thread-safe.
class Matcher {
 public:
  // Receives messages of `peer`, and answers by `link`.
  Matcher(const MatcherArgs& args, int peer, PeerLink& link)
      : args_(args), peer_(peer), link_(link), credit_(args.budget->share()) {}
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  // Fabric::Recv(). Returns whether the peer has nothing more to do for it.
  bool Post(MessageId id, BufferView dst, std::uint64_t signature, Done done);
  // The header of a data message has arrived. Returns where its payload goes.
  // It is a part of LinkEvents::OnHeader().
  Result<LinkEvents::Landing> Land(const Header& header);
  // Its payload has arrived.
  void Arrive(const Header& header);

  // See Fabric.
  std::optional<std::uint64_t> Told(MessageId id) const;
  bool HasMessage(MessageId id) const;
  // Whether a receive waits for the peer.
  bool HasPosted() const;
  // Bytes of messages that no receive takes: those that are held here, and all,
  // including those that were announced.
  std::size_t held_bytes() const { return held_bytes_; }
  std::uint64_t waiting_bytes() const;

  // Fails the job if a message waits that belongs to a finished call.
  void CheckFinished() const {
    if (!matches_.empty()) FailIfFinished();
  }
  // Drops the messages of that group that no one has received.
  void CloseGroup(GroupId group);
  // This rank posts no more receives: declines what is announced, now and
  // later.
  void DeclineAll();
  // Ends all receives with `why`, and drops all messages. REQUIRES that no link
  // writes to their buffers.
  void FailAll(const Status& why);

 private:
  // A receive, a message, or both, under one id.
  struct Match {
    bool posted = false;    // Post() was called.
    bool arriving = false;  // The header has arrived.
    bool arrived = false;   // The payload has arrived.
    BufferView dst;
    std::uint64_t signature = 0;  // The signature that the receive expects.
    Done done;
    Header header;
    // The payload of a message that no receive awaited when it came.
    HeldMemory::Block held;
    // The message was announced. `header` then has its true length.
    bool announced = false;
    bool called_for = false;
    bool landing = false;
    std::uint64_t announced_send = 0;
    AnnouncementBytes announcement;
  };

  using Matches = std::unordered_map<MessageId, Match, HashOfId>;

  // Returns the match under that id, a new one if there is none.
  Matches::iterator Of(MessageId id);
  bool Fits(const Match& match, Status* why) const;
  Result<LinkEvents::Landing> LandInReceive(const Header& header, Match* match);
  Result<LinkEvents::Landing> LandCalledFor(const Header& header);
  Result<LinkEvents::Landing> Hold(const Header& header, Match* match);
  void Complete(Matches::iterator at);
  void OnAnnouncement(MessageId id);
  void CallFor(Matches::iterator at);
  void GrowCredit();
  template <typename Which>
  void DropUnposted(const Which& which);
  void Drop(MessageId id, Match* match);
  void GiveBack(std::uint64_t payload_bytes);
  MessageId IdOf(const Header& header) const;
  void FailIfFinished() const;
  Status Stale(const Header& header) const;
  Status Broken(const std::string& what) const;

  const MatcherArgs args_;
  const int peer_;
  PeerLink& link_;
  Matches matches_;
  Matches::node_type spare_;  // Of a match that is over, or empty.
  Arrivals arrivals_;
  CreditToReceive credit_;
  std::size_t held_bytes_ = 0;
  bool declines_ = false;
};

}  // namespace gradientflow
