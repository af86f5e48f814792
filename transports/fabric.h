#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/clock.h"
#include "gradientflow/base/done.h"
#include "gradientflow/base/pollable.h"
#include "gradientflow/base/status.h"
#include "transports/early_credit.h"
#include "transports/finished_calls.h"
#include "transports/held_memory.h"
#include "transports/job_verdict.h"
#include "transports/lent_sends.h"
#include "transports/link.h"
#include "transports/link_set.h"
#include "transports/link_source.h"
#include "transports/liveness.h"
#include "transports/matcher.h"
#include "transports/peer_link.h"
#include "transports/poller.h"
#include "transports/posted_receives.h"
#include "transports/tags.h"
#include "transports/wire.h"

namespace gradientflow {

struct FabricOptions {
  // The bytes of early messages that all peers together may have sent to this
  // rank; see early_credit.h. The same on all ranks.
  std::size_t early_bytes = std::size_t{64} << 20;
  std::chrono::nanoseconds heartbeat_timeout = std::chrono::seconds(30);
};

// One rank's side of reliable, tagged messages between ranks. The links move
// the bytes and know where they lead (this process, this host, another host).
// The fabric combines what all links have in common:
//
//   LentSends   (lent_sends.h)   the messages that this rank sends
//   PeerLink    (peer_link.h)    the link to a peer, and what waits for it
//   LinkSet     (link_set.h)     all links
//   Matcher     (matcher.h)      matches the messages of a peer with receives
//   Liveness    (liveness.h)     whether peers are alive
//   JobVerdict  (job_verdict.h)  why the job ends
//
// A message is sent at once if its sender has credit for it (early_credit.h).
// Otherwise it is announced, and sent when its receive is posted. So a message
// waits for nothing but its receive, whatever else is under way; and a send may
// last until the peer receives.
//
// A message of a collective must have exactly the length of its receive, or the
// job ends. arrivals.h describes point-to-point messages.
//
// A peer may not be linked yet; it is then neither down nor departed. Messages
// to it wait here, and ask for the link.
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
  const Link* link(int peer) const { return peers_[peer]->way.link(); }
  // Null if all links were made at the beginning, and after a failure.
  LinkSource* source() { return source_.get(); }
  // Returns whether links are being made, so that a thread has to drive.
  bool IsLinking() const { return source_ != nullptr && source_->busy(); }
  // The peer's address, for error messages.
  std::string AddressOf(int peer) const;
  // Tells the links how fast a rank sends to other hosts; see Link.
  void LineMeasured(int mbps);
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
  // Tells `peer` a number in a message without payload. It is no error if the
  // peer leaves before the message has arrived. If the peer is not linked, the
  // message waits for the link, perhaps for ever; call AskForLink() if the
  // number must arrive. REQUIRES an id that no Recv() uses; a second number
  // under the same id is an error.
  void Tell(int peer, MessageId id, std::uint64_t number);
  // Returns the number that `peer` has told this rank under that id, or nothing
  // if none has arrived.
  std::optional<std::uint64_t> Told(int peer, MessageId id) const;
  // Returns whether a message has arrived, or its header or announcement has,
  // for which no Recv() waits.
  bool HasMessage(int peer, MessageId id) const;

  // Collective `call` of `series`, and all before it, are done on this rank. A
  // message of theirs that arrives later belongs to a call that this rank did
  // not make, and ends the job.
  void CallDone(GroupId group, int series, std::uint64_t call);
  // The group is closed: drops the messages for it that were not received.
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
    return peers_[peer]->progress;
  }
  // Asks every linked peer for its progress text.
  void AskProgress();
  // The peers that a posted receive or a pending send waits for, ascending.
  std::vector<int> AwaitedPeers() const;
  // What this rank is doing.
  const std::string& progress_text() const { return progress_; }
  // Bytes of the messages of `peer` for which no receive is posted.
  // held_bytes() counts those that are held here, which tests check against a
  // bound; waiting_bytes() counts the announced ones, too.
  std::size_t held_bytes(int peer) const {
    return peers_[peer]->matcher.held_bytes();
  }
  std::uint64_t waiting_bytes(int peer) const {
    return peers_[peer]->matcher.waiting_bytes();
  }

  // Number of peers that have said good-bye and closed. This rank does not know
  // whether peers that are not linked have: if each rank passed the news on, p
  // ranks that leave would cost p^2 log p messages. A rank that asks for the
  // link finds out.
  int departed() const { return departed_; }
  bool HasDeparted(int peer) const {
    return peers_[peer]->left && peers_[peer]->way.down();
  }
  // Ends the job if `peer`, which this rank needs, has departed.
  void FailIfDeparted(int peer);
  // Ends the job because `peer` has departed: at once if it has said so. If it
  // was never linked, only after the time in which the news of its death would
  // have arrived.
  void FailDeparted(int peer, const Status& why);

  // Ends the job. The next Poll() tells the peers, drops the links and fails
  // every pending operation with `why`; operations started later fail, too.
  // Only the first call counts. That Poll() takes 100 ms at most.
  void Fail(const Status& why);
  // OK, or why it failed.
  const Status& status() const { return verdict_.status(); }
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
  struct Peer {
    Peer(const MatcherArgs& args, int rank)
        : matcher(args, rank, way), credit(args.budget->share()) {}

    PeerLink way;
    Matcher matcher;
    CreditToSend credit;
    std::string progress;
    // Payload of the control message that arrives.
    std::vector<std::byte> control;
    bool left = false;  // It has said good-bye.
  };

  void Add(int peer, std::unique_ptr<Link> link);
  // The peer's rank and address.
  std::string NameOf(int peer) const;
  void AskForAwaited();
  bool IsNeeded(int peer) const;
  void OnControl(int peer, const Header& header);
  void OnAnswer(int peer, const Header& header);
  void OnCredit(int peer, std::uint64_t bytes);
  Status HasLeft(int peer) const;
  Status Silent(int peer) const;
  void SendBeats();
  bool AwaitsAnswers() const;
  void TearDown();
  void SayWhy();

  const int rank_;
  const int size_;
  const Clock& clock_;
  std::unique_ptr<Poller> poller_;
  const FabricOptions options_;
  JobVerdict verdict_;
  FinishedCalls finished_;
  HeldMemory held_memory_;
  EarlyBudget early_;
  DoneQueue ready_;
  LentSends sends_;
  PostedReceives receives_;
  std::vector<std::unique_ptr<Peer>> peers_;
  LinkSet links_;
  std::unique_ptr<LinkSource> source_;  // May be null.
  Liveness liveness_;
  std::string progress_;
  bool torn_down_ = false;
  int departed_ = 0;
  std::uint64_t polls_ = 0;
  bool leaving_ = false;
  bool said_bye_ = false;
};

}  // namespace gradientflow
