#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "transports/link.h"
#include "transports/rdma/frames.h"
#include "transports/rdma/queue_pair.h"
#include "transports/rdma/rail.h"
#include "transports/rdma/rdma_end.h"
#include "transports/rdma/rdma_handshake.h"
#include "transports/rdma/rdma_places.h"

namespace gradientflow {

struct RdmaLinkArgs {
  int rank = 0;
  int peer = 0;
  std::shared_ptr<Rail> rail;
  // Its number, if there is a link for each of several rails (RailsLink).
  std::size_t rail_number = 0;
  // Whether it measures its rate, so that RailsLink and RdmaPlaces can choose.
  bool measures = false;
  // The link that keeps carrying messages about ranks. It reports its events to
  // this link (see LinkEvents below).
  std::unique_ptr<Link> control;
  LinkEvents* events = nullptr;  // Outlives the link.
  const Clock* clock = nullptr;  // Outlives the link.
  // The places whose messages go over this link; null if there are none.
  std::shared_ptr<RdmaPlaces> places;
  std::shared_ptr<void> keep_alive;  // What the control link needs.
};

// The connection to one peer by a queue pair, beside the TCP connection over
// which it was set up. Messages about ranks stay on TCP, which reports a death
// within milliseconds; a queue pair reports it late or never:
//
//   pings, aborts, good-byes ─> control link
//   all else                 ─> Outbox ─> queue pair ─> peer's Inbox
//
// Life of a link: Begin() starts a handshake (rdma_handshake.h). Once its
// outcome is kWorks, the owner Adopt()s the link. Until then the link reports
// no events; a link that does not work says why and is dropped.
class RdmaLink final : public Link,
                       public LinkEvents,
                       private QueuePair::Owner {
 public:
  using Outcome = RdmaHandshake::Outcome;

  explicit RdmaLink(RdmaLinkArgs args);
  ~RdmaLink() override;

  // -- Setting up.
  void Begin();
  // Goes on with it; call often. Returns whether anything moved. Fails it when
  // nothing gets through.
  bool PollSetup();
  // Fails it, unless it is over.
  void Reject(const Status& why);
  // There is no time left: the same, unless this rank has said that the link
  // works. Then only the peer's word decides, since it may have said so, too.
  void GiveUp(const Status& why) {
    if (!handshake_.passed()) Reject(why);
  }
  Outcome outcome() const { return handshake_.outcome(); }
  // Returns whether the outcome is known and the peer has been told, so that
  // the link can be used or dropped.
  bool settled() const;
  const Status& why() const { return why_; }  // If it fails, or is down.
  // From now on the link reports its events.
  void Adopt();
  void Put(std::span<const ConstBufferView> pieces, const RemotePlace& there,
           std::uint32_t notice, const Done& done) {
    if (!gone()) end_.outbox().Put(pieces, there, notice, done);
  }
  // No completion of a Put() runs any more.
  void ForgetPuts() { end_.outbox().ForgetPuts(); }

  // -- For one of several (RailsLink).
  std::size_t rail_number() const { return args_.rail_number; }
  // See Outbox.
  double SecondsFor(std::size_t bytes) const {
    return end_.outbox().SecondsFor(bytes);
  }
  // Returns whether the peer has everything that was sent, except for control
  // messages.
  bool drained() const {
    return gone() || (end_.outbox().queued() == 0 && end_.pair()->idle());
  }
  // The control link has gone down: delivers what had arrived by then.
  void TakeTheRest();
  // As if the control link had gone down with this reason.
  void End(const Status& why) {
    if (!gone()) Fail(why);
  }

  // -- Link.
  const char* kind() const override { return "rdma"; }
  const char* address() const override { return args_.control->address(); }
  int lanes() const override { return kRdmaLanes; }
  void Send(int lane, const OutMessage& message) override;
  bool Poll() override;
  void Resume(int lane) override;
  bool PrepareToSleep() override;
  void WakeUp() override { args_.control->WakeUp(); }
  void Beat() override { args_.control->Beat(); }
  std::uint64_t beats() const override { return args_.control->beats(); }
  std::size_t queued_messages() const override;
  void Close() override;

  // -- LinkEvents: from the control link.
  Result<Landing> OnHeader(int peer, int lane, const Header& header) override;
  void OnMessage(int peer, int lane, const Header& header) override;
  void OnDown(int peer, const Status& why) override;

 private:
  // From QueuePair::Owner.
  void OnImmediate(std::uint32_t immediate, std::uint32_t bytes) override;
  void OnWritten(std::uint64_t cookie) override;
  void OnBroken(const Status& why) override;

  Status Explain(StatusCode code, const std::string& what) const {
    return handshake_.Explain(code, what);
  }
  void OnProbe(std::uint32_t bytes);
  void OnEarlyNotice(std::uint32_t notice);
  void OnRingImmediate(std::uint32_t number, std::uint32_t bytes);
  Status Handle(const Immediate& immediate, std::uint32_t bytes);
  Status OnGrant(int lane);
  Status HandOn(const Header& header);
  bool HandOnPaused();
  bool CanSendHeld() const;
  void SendHeldControl();
  void EndIfFlushed();
  void Quit();
  void FailAndTell(const Status& why);
  void Fail(const Status& why);
  bool gone() const { return closed_ || down_; }
  bool PollLost();
  bool HasWork() const;
  void Work(bool* moved);

  RdmaLinkArgs args_;
  RdmaHandshake handshake_;
  RdmaEnd end_;
  Status why_;

  // The payload of the message that arrives on the control link, and the header
  // of one whose receiver has paused.
  std::vector<std::byte> control_text_;
  std::optional<Header> paused_control_;
  bool resumed_control_ = false;
  std::string last_words_;

  bool adopted_ = false;
  Status lost_;  // Why it went down before Adopt().
  // Good-byes, which leave when the peer has all that was written before.
  std::vector<OutMessage> held_control_;
  Clock::Time flushed_at_{};
  bool control_down_ = false;
  bool down_ = false;
  bool closed_ = false;
};

}  // namespace gradientflow
