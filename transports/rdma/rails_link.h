#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/link.h"
#include "transports/rdma/rdma_link.h"

namespace gradientflow {

// The connection to one peer by several rails: a link for each, which share one
// control link.
//
//   lane 0             ─> the first rail's lane 0 ─> control messages by TCP
//   lanes 1 + 8k...    ─> lanes 1 to 8 of rail k
//   placed messages    ─> any of them (RdmaPlaces)
//
// If the sender may choose the lane of a message, it takes the rail on which
// the message is predicted to arrive first. If one rail fails, the whole link
// does.
//
// It is made before its links, since they report their events to it; Take()
// gives it those that work.
class RailsLink final : public Link {
 public:
  // `control` is the link to `peer` by TCP. `events` outlives this.
  RailsLink(int peer, std::size_t rails, std::unique_ptr<Link> control,
            LinkEvents* events);
  ~RailsLink() override;

  // What a rail's link needs: where to report events, and its end of the
  // control link.
  LinkEvents* EventsOf(std::size_t rail) { return &tellers_[rail]; }
  std::unique_ptr<Link> ControlOf(std::size_t rail);
  // `links` are those that work, in the order of their rails, the first rail's
  // at least; both ranks take the same. The others are kept, since the control
  // link may still have what they said.
  void Take(std::vector<std::unique_ptr<RdmaLink>> links,
            std::vector<std::unique_ptr<RdmaLink>> others);

  const char* kind() const override { return "rdma"; }
  const char* address() const override { return links_.front()->address(); }
  int lanes() const override {
    return 1 + kLanesEach * static_cast<int>(links_.size());
  }
  int DataLane(std::uint64_t spread) override;
  void Send(int lane, const OutMessage& message) override;
  bool Poll() override;
  void Resume(int lane) override;
  bool PrepareToSleep() override;
  void WakeUp() override { links_.front()->WakeUp(); }
  void Beat() override { links_.front()->Beat(); }
  std::uint64_t beats() const override { return links_.front()->beats(); }
  std::size_t queued_messages() const override;
  void Close() override;

 private:
  static constexpr int kLanesEach = kRdmaLanes - 1;

  // Passes on the events of one rail's link, with the lanes of this link.
  class Teller final : public LinkEvents {
   public:
    explicit Teller(RailsLink* owner) : owner_(owner) {}
    // The place of its link among those that were taken.
    void SetPlace(int place) { place_ = place; }
    Result<Landing> OnHeader(int peer, int lane, const Header& header) override;
    void OnMessage(int peer, int lane, const Header& header) override;
    void OnDown(int peer, const Status& why) override;

   private:
    int Outer(int lane) const {
      return lane == 0 ? 0 : kLanesEach * place_ + lane;
    }
    RailsLink* const owner_;
    int place_ = 0;
  };

  RdmaLink& OfLane(int lane) const {
    return *links_[static_cast<std::size_t>(
        lane == 0 ? 0 : (lane - 1) / kLanesEach)];
  }
  static int Inner(int lane) {
    return lane == 0 ? 0 : 1 + (lane - 1) % kLanesEach;
  }
  bool OthersDrained() const;
  bool SendHeld();
  void OnDown(const Status& why);

  const int peer_;
  LinkEvents* const events_;
  std::unique_ptr<Link> control_;  // Until the first rail's link has it.
  Link* const shared_control_;     // The same, for the others.
  std::deque<Teller> tellers_;
  std::vector<std::unique_ptr<RdmaLink>> others_;
  std::vector<std::unique_ptr<RdmaLink>> links_;
  // A good-bye, which leaves when the peer has all that was sent before.
  std::vector<OutMessage> held_;
  bool down_ = false;
  bool closed_ = false;
};

}  // namespace gradientflow
