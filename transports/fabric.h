#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/clock.h"
#include "gradientflow/base/done.h"
#include "gradientflow/base/status.h"
#include "transports/arrivals.h"
#include "transports/held_memory.h"
#include "transports/link.h"
#include "transports/poller.h"
#include "transports/tags.h"

namespace gradientflow {

struct FabricOptions {
  // Bytes per peer that may wait for a receive before its lane is paused. What
  // is awaited may come behind them: then, one by one, up to 16 times as many.
  std::size_t unexpected_bytes = std::size_t{32} << 20;
  std::chrono::nanoseconds heartbeat_timeout = std::chrono::seconds(30);
};

// What a message carries beside its payload.
struct Stamp {
  std::uint64_t signature = 0;  // See Header.
  std::uint32_t flags = 0;
};

// One rank's ends of reliable tagged messages to its peers: matches messages
// to receives (the lengths of a collective's must be equal, or the job ends;
// of point-to-point messages see arrivals.h), tells whether peers live, spreads
// the news when one does not. The links do the moving; where they lead (this
// process, this host, another) is theirs to know.
//
// NOT thread-safe but for Wake(): the thread that drives it calls. Every Done
// runs exactly once, inside Poll() or the destructor.
class Fabric final : public LinkEvents {
 public:
  Fabric(int rank, int size, const Clock& clock, std::unique_ptr<Poller> poller,
         const FabricOptions& options);
  ~Fabric() override;  // Closes at once; Leave() first for good manners.

  // links[r]: to rank r; null for this rank. Once, before anything else.
  void Connect(std::vector<std::unique_ptr<Link>> links);

  int rank() const { return rank_; }
  int size() const { return size_; }
  Poller& poller() { return *poller_; }
  const Link* link(int peer) const { return peers_[peer].link.get(); }

  // Lends `src` until `done` runs.
  void Send(int peer, MessageId id, ConstBufferView src, Stamp stamp,
            Done done);
  // Lends `dst` until `done` runs. `signature` must be the sender's. Each
  // (peer, id) is received once, but for ids that the receiver numbers.
  void Recv(int peer, MessageId id, BufferView dst, std::uint64_t signature,
            Done done);
  // Tells `peer` a number by a message without bytes, which nobody needs: it is
  // no error if the peer leaves before it has come. The id is one that no
  // Recv() is for; a second number under it is an error.
  void Tell(int peer, MessageId id, std::uint64_t number);
  // What `peer` has told this rank under that id; nothing if it has not yet.
  std::optional<std::uint64_t> Told(int peer, MessageId id) const;
  // A message that no Recv() waits for is here, or its header is.
  bool HasMessage(int peer, MessageId id) const;
  // Of `peer`, for which there are numbers; see Arrivals.
  std::size_t tags_known(int peer) const {
    return peers_[peer].arrivals.tags();
  }

  // Collective `call` of `series` is done here, and all before it: a message of
  // theirs that still comes is of a call that this rank did not make, and ends
  // the job.
  void CallDone(GroupId group, int series, std::uint64_t call);
  // The group is no more: what came for it and nobody received is dropped.
  void CloseGroup(GroupId group);

  // Moves what can be moved and runs what is done. Returns whether anything
  // did.
  bool Poll();
  // Blocks until something may have happened, at most `timeout`.
  void Wait(std::chrono::nanoseconds timeout);
  // Any thread: ends a Wait(), now or next.
  void Wake() { poller_->Wake(); }

  // Heartbeats out, silence in. Call every 100 ms or so. `waiting`: this rank
  // waits for peers, so one that is silent for too long is an error. Only what
  // a running process sends by itself counts, control messages and beats: data
  // may have lain in buffers since before it stopped.
  void Tick(bool waiting);
  // Sent along with heartbeats: what this rank is doing, for stall reports.
  void SetProgressText(std::string text) { progress_ = std::move(text); }
  const std::string& progress_text_of(int peer) const {
    return peers_[peer].progress;
  }
  // Asks every peer for its progress text.
  void AskProgress();
  // Peers that a posted receive, or a send on its way, waits for, ascending.
  std::vector<int> AwaitedPeers() const;
  // What this rank is doing.
  const std::string& progress_text() const { return progress_; }
  // Whether messages of `peer` wait, as no receive takes them, and the limit
  // for such is reached; how many bytes of them are held here.
  bool IsHeldBack(int peer) const { return peers_[peer].paused_lanes > 0; }
  std::size_t held_bytes(int peer) const { return peers_[peer].held_bytes; }

  // Peers that have said good-bye and gone.
  int departed() const { return departed_; }
  bool HasDeparted(int peer) const {
    return peers_[peer].left && peers_[peer].down;
  }
  // Ends the job if `peer`, which this rank needs, is one of them.
  void FailIfDeparted(int peer);

  // Ends the job: the next Poll() tells the peers, drops the links and fails
  // every pending operation with `why`; later ones fail too. The first call
  // decides. That Poll() takes 100 ms at most.
  void Fail(const Status& why);
  const Status& status() const { return status_; }  // Why it failed, or OK.

  // Good-bye to all: flushes, and waits `patience` at most for the peers'.
  void Leave(std::chrono::nanoseconds patience);

  // LinkEvents.
  Result<Landing> OnHeader(int peer, int lane, const Header& header) override;
  void OnMessage(int peer, int lane, const Header& header) override;
  void OnDown(int peer, const Status& why) override;

 private:
  // The number of the next call of either series.
  using NextCalls = std::array<std::uint64_t, 2>;
  // A receive, a message, or both, that share an id.
  struct Match {
    bool posted = false;    // Recv() was called.
    bool arriving = false;  // The header is here.
    bool arrived = false;   // The payload is here.
    BufferView dst;
    std::uint64_t signature = 0;  // That is expected.
    Done done;
    Header header;
    // The payload of a message not yet awaited.
    HeldMemory::Block held;
    int paused_lane = -1;
    bool lifted = false;  // Held whatever the limit, see LiftLimit().
  };
  struct Peer {
    std::unique_ptr<Link> link;
    std::unordered_map<MessageId, Match, HashOfId> matches;
    Arrivals arrivals;
    std::size_t held_bytes = 0;
    int paused_lanes = 0;
    std::size_t control_queued = 0;  // Control messages that have not left.
    Clock::Time heard{};             // The last sign that its process runs.
    std::uint64_t beats = 0;         // Of the link, as last seen.
    std::string progress;
    std::vector<std::byte> control;  // Payload of a control message.
    bool down = false;
    bool left = false;
  };
  struct Lent {  // A send's buffer.
    Done done;
    int peer = 0;
  };
  struct ControlOut {
    std::string text;
    int peer = 0;
  };
  struct Ready {
    Done done;
    std::uint32_t flags;
    Status status;
  };

  // Whether the message is what the receive expects.
  bool Check(int peer, const Match& match, Status* why) const;
  bool IsStale(MessageId id) const;
  Status StaleMessage(int peer, const Header& header) const;
  void Complete(int peer, MessageId id);
  static MessageId IdOf(const Peer& from, const Header& header);
  static void ForgetIfEven(Peer* from, MessageId id);
  void OnControl(int peer, const Header& header);
  void SendControl(int peer, MessageKind kind, std::string text, Tag tag = 0);
  void ResumePaused(Peer& peer);
  void LiftLimit(Peer& from);
  void TearDown();
  bool RunReady();
  void DecideDown();
  void SendBeats();
  static bool HasPosted(const Peer& peer);
  bool HasSends(int peer) const;
  static void OnSent(void* self, std::uint64_t slot, std::uint32_t flags,
                     const Status& status);
  static void FreeControl(void* self, std::uint64_t cookie, std::uint32_t,
                          const Status&);

  const int rank_;
  const int size_;
  const Clock& clock_;
  std::unique_ptr<Poller> poller_;
  const FabricOptions options_;
  HeldMemory held_memory_;
  std::vector<Peer> peers_;
  std::deque<Ready> ready_;
  std::unordered_map<GroupId, NextCalls> next_calls_;
  // Sends whose buffer is lent, by slot; so that each Done runs even if its
  // link is dropped.
  std::vector<Lent> sends_;
  std::vector<std::uint64_t> free_sends_;
  // Control messages on their way, by cookie.
  std::unordered_map<std::uint64_t, ControlOut> control_out_;
  std::uint64_t next_control_ = 0;
  std::string progress_;
  Status status_;
  bool torn_down_ = false;
  int departed_ = 0;
  bool sockets_carry_data_ = false;  // Some link's.
  std::uint64_t polls_ = 0;
  // A peer went down without a word: others may know why.
  Status suspect_;
  Clock::Time suspect_since_{};
  Clock::Time last_beat_{};
  Clock::Time last_tick_{};
  bool leaving_ = false;
};

}  // namespace gradientflow
