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
#include "gradientflow/base/pollable.h"
#include "gradientflow/base/status.h"
#include "transports/arrivals.h"
#include "transports/early_credit.h"
#include "transports/held_memory.h"
#include "transports/link.h"
#include "transports/link_source.h"
#include "transports/poller.h"
#include "transports/tags.h"
#include "transports/wire.h"

namespace gradientflow {

struct FabricOptions {
  // What all peers together may have sent to this rank before it awaits it; see
  // early_credit.h. The same on all ranks.
  std::size_t early_bytes = std::size_t{64} << 20;
  std::chrono::nanoseconds heartbeat_timeout = std::chrono::seconds(30);
};

// What a message carries besides its payload.
struct Stamp {
  std::uint64_t signature = 0;  // See Header::signature.
  std::uint32_t flags = 0;
};

// One rank's ends of reliable, tagged messages to its peers. The fabric matches
// messages to receives, finds out whether peers are alive, and spreads the news
// if one is not. The links move the bytes and know where they lead (this
// process, this host, another host).
//
// A message goes unasked while its sender has credit for it (early_credit.h),
// and is otherwise announced, so that it comes when its receive is posted. So a
// receive is all that a message may have to wait for, whatever else is under
// way; and a send may last until the peer receives.
//
// A message of a collective must have exactly the length of its receive, or the
// job ends. arrivals.h describes point-to-point messages.
//
// A peer may be one that is not linked yet: neither down nor departed. Messages
// to it wait here, and ask for the link (fabric_links.cc).
//
// NOT thread-safe, except for Wake(): all calls come from the thread that
// drives it. Every Done runs exactly once, inside Poll() or the destructor.
class Fabric final : public Pollable,
                     public LinkEvents,
                     public LinkSource::Sink {
 public:
  Fabric(int rank, int size, const Clock& clock, std::unique_ptr<Poller> poller,
         const FabricOptions& options);
  // Closes at once. Call Leave() first to part in good order.
  ~Fabric() override;

  // links[r] leads to rank r; it is null for this rank and for ranks that the
  // `source` links to when they are needed. The source is null if there are no
  // such ranks. To be called once, before anything else.
  void Connect(std::vector<std::unique_ptr<Link>> links,
               std::unique_ptr<LinkSource> source = nullptr);

  int rank() const { return rank_; }
  int size() const { return size_; }
  Poller& poller() { return *poller_; }
  // Null for this rank, and for a peer that is not linked.
  const Link* link(int peer) const { return peers_[peer].link.get(); }
  // Null if all links were made at the beginning, and after a failure.
  LinkSource* source() { return source_.get(); }
  // Returns whether links are being made, so that somebody has to drive.
  bool IsLinking() const { return source_ != nullptr && source_->busy(); }
  // The peer's address, for error messages.
  std::string AddressOf(int peer) const;
  // Asks for the link to `peer`, unless there is one.
  void AskForLink(int peer);

  // Sends `src` to `peer`. `src` is lent until `done` runs.
  void Send(int peer, MessageId id, ConstBufferView src, Stamp stamp,
            Done done);
  // Receives the message `id` of `peer`. `dst` is lent until `done` runs, and
  // `signature` must equal the sender's. Each (peer, id) may be received once,
  // except for ids that the receiver numbers.
  void Recv(int peer, MessageId id, BufferView dst, std::uint64_t signature,
            Done done);
  // Tells `peer` a number in a message without payload. No one depends on the
  // message: it is no error if the peer leaves before it has arrived. A peer
  // that is not linked is told as soon as it is, since as long as neither rank
  // waits for the other, the number is of no use to it. REQUIRES
  // an id that no Recv() uses; a second number under the same id is an error.
  void Tell(int peer, MessageId id, std::uint64_t number);
  // Returns the number that `peer` has told this rank under that id, or nothing
  // if none has arrived.
  std::optional<std::uint64_t> Told(int peer, MessageId id) const;
  // Returns whether a message has arrived, or its header or announcement has,
  // for which no Recv() waits.
  bool HasMessage(int peer, MessageId id) const;
  // Number of names under which messages of `peer` are numbered; see Arrivals.
  // Tests hold it to a bound.
  std::size_t tags_known(int peer) const {
    return peers_[peer].arrivals.tags();
  }

  // Collective `call` of `series`, and all before it, are done on this rank. A
  // message of theirs that arrives later belongs to a call that this rank did
  // not make, and ends the job.
  void CallDone(GroupId group, int series, std::uint64_t call);
  // The group is closed: messages for it that no one received are dropped.
  void CloseGroup(GroupId group);

  // Moves what can be moved and runs the Dones that are due. Returns whether
  // anything happened. Never blocks, except in the first call after Fail().
  bool Poll() override;
  // Blocks until something may have happened, for at most `timeout`.
  void Wait(std::chrono::nanoseconds timeout);
  // May be called on any thread. Ends the current Wait(), or the next one.
  void Wake() { poller_->Wake(); }

  // Sends heartbeats and looks for silent peers. Call it every 100 ms or so.
  // `waiting` says that this rank waits for peers, so that a peer that is
  // silent for too long is an error. Only what a running process sends by
  // itself is a sign of life, that is control messages and beats: data may have
  // been in buffers since before the process stopped. Beats go to linked peers
  // alone, so this asks for the links to all peers that receives wait for.
  // (Recv() does not, since most often the peer is about to send, and asks.)
  void Tick(bool waiting);
  // What this rank is doing, for stall reports. Sent along with heartbeats.
  void SetProgressText(std::string text) { progress_ = std::move(text); }
  const std::string& progress_text_of(int peer) const {
    return peers_[peer].progress;
  }
  // Asks every linked peer for its progress text.
  void AskProgress();
  // The peers that a posted receive or a pending send waits for, ascending.
  std::vector<int> AwaitedPeers() const;
  // What this rank is doing.
  const std::string& progress_text() const { return progress_; }
  // Bytes of messages of `peer` that no receive here takes: those that are held
  // here, which tests hold to a bound, and all, including those that were
  // announced.
  std::size_t held_bytes(int peer) const { return peers_[peer].held_bytes; }
  std::uint64_t waiting_bytes(int peer) const;

  // Number of peers that have said good-bye and closed. Peers that are not
  // linked do so unnoticed: if each rank passed the news on, p ranks that leave
  // would cost p^2 log p messages. A rank that asks for the link finds out.
  int departed() const { return departed_; }
  bool HasDeparted(int peer) const {
    return peers_[peer].left && peers_[peer].down;
  }
  // Ends the job if `peer`, which this rank needs, is one of these.
  void FailIfDeparted(int peer);
  // Ends the job because `peer` is one of these: at once if it has said so, but
  // if it was never linked, when the news of a death would have come.
  void FailDeparted(int peer, const Status& why);

  // Ends the job. The next Poll() tells the peers, drops the links and fails
  // every pending operation with `why`; operations started later fail, too.
  // Only the first call counts. That Poll() takes 100 ms at most.
  void Fail(const Status& why);
  const Status& status() const { return status_; }  // OK, or why it failed.
  // Returns whether it has failed and given back every buffer, so that no peer
  // writes to this rank's memory any more.
  bool torn_down() const { return torn_down_; }

  // Says good-bye to all linked peers: flushes, and waits for their good-byes
  // for at most `patience`.
  void Leave(std::chrono::nanoseconds patience);

  // From LinkEvents.
  Result<Landing> OnHeader(int peer, int lane, const Header& header) override;
  void OnMessage(int peer, int lane, const Header& header) override;
  void OnDown(int peer, const Status& why) override;

  // From LinkSource::Sink.
  void OnLink(int peer, std::unique_ptr<Link> link) override;
  void OnGone(int peer, const Status& why) override;
  void OnFailed(const Status& why) override { Fail(why); }

 private:
  // The number of the next call of each series.
  using NextCalls = std::array<std::uint64_t, 2>;
  // A receive, a message, or both, under one id.
  struct Match {
    bool posted = false;    // Recv() was called.
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
  struct Peer {
    std::unique_ptr<Link> link;
    bool asked = false;              // The source has been asked for the link.
    std::vector<OutMessage> unsent;  // Data that waits for the link.
    std::unordered_map<MessageId, Match, HashOfId> matches;
    Arrivals arrivals;
    CreditToSend to_send;
    CreditToReceive to_receive;
    std::size_t held_bytes = 0;
    std::size_t control_queued = 0;  // Control messages that have not left.
    Clock::Time heard{};             // Last sign that the process runs.
    std::uint64_t beats = 0;         // The link's count, as last seen.
    std::string progress;
    // Payload of the control message that arrives.
    std::vector<std::byte> control;
    bool down = false;
    bool left = false;
  };
  struct Lent {  // The buffer of a send.
    Done done;
    int peer = 0;
    MessageId id;
    ConstBufferView src;
    Stamp stamp;
    bool announced = false;  // The peer has yet to answer.
    AnnouncementBytes announcement;
  };
  struct ControlOut {
    std::string text;
    int peer = 0;
  };

  // Returns whether the message is the one that its receive expects; if not,
  // `why` says how they differ.
  bool Check(int peer, const Match& match, Status* why) const;
  bool IsStale(MessageId id) const;
  Status StaleMessage(int peer, const Header& header) const;
  void Complete(int peer, MessageId id);
  static MessageId IdOf(const Peer& from, const Header& header);
  static void ForgetIfEven(Peer* from, MessageId id);
  void OnControl(int peer, const Header& header);
  void SendControl(int peer, MessageKind kind, std::string text, Tag tag = 0);
  static int LaneOf(Link& link, Tag tag);
  void Add(int peer, std::unique_ptr<Link> link);
  void WaitForLink(int peer, const OutMessage& message);
  void AskForAwaited();
  Status HasLeft(int peer) const;
  void SuspectAnother();
  void Suspect(int peer, const Status& why, std::chrono::nanoseconds patience);
  Status Silent(int peer, Clock::Time now) const;
  OutMessage MessageOf(std::uint64_t slot, MessageKind kind, MessageId id);
  void Signal(int peer, const Header& header);
  void OnAnnouncement(int peer, MessageId id);
  void GrowCredit(int peer);
  void CallFor(int peer, MessageId id);
  void Decline(int peer, const Match& match);
  void DeclineAll();
  void OnAnswer(int peer, const Header& header);
  void OnCredit(int peer, std::uint64_t bytes);
  void GiveBack(int peer, std::uint64_t payload_bytes);
  void Drop(int peer, MessageId id, Match* match);
  Result<Landing> LandPayload(int peer, const Header& header);
  bool AwaitsAnswers() const;
  void TearDown();
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
  EarlyBudget early_;
  std::vector<Peer> peers_;
  std::vector<Peer*> linked_;           // Those that have a link, up or down.
  std::unique_ptr<LinkSource> source_;  // May be null.
  DoneQueue ready_;
  std::unordered_map<GroupId, NextCalls> next_calls_;
  // The sends whose buffers are lent, by slot. Kept here so that each Done runs
  // even if its link is dropped.
  std::deque<Lent> sends_;  // Entries stay where they are.
  std::vector<std::uint64_t> free_sends_;
  // Control messages in flight, by cookie.
  std::unordered_map<std::uint64_t, ControlOut> control_out_;
  std::uint64_t next_control_ = 0;
  std::string progress_;
  Status status_;
  bool torn_down_ = false;
  int departed_ = 0;
  bool sockets_carry_data_ = false;  // True if those of any link do.
  std::uint64_t polls_ = 0;
  // What this rank believes of a peer, until others had the time to say what
  // they know.
  Status suspect_;
  int suspect_peer_ = 0;
  Clock::Time suspect_until_{};
  Clock::Time last_beat_{};
  Clock::Time last_tick_{};
  bool leaving_ = false;
  bool said_bye_ = false;
};

}  // namespace gradientflow
