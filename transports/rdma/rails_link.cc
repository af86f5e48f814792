#include "transports/rdma/rails_link.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/rdma/throughput.h"

namespace gradientflow {
namespace {

// The length for which the quickest rail is chosen; most messages are about
// that long.
constexpr std::size_t kUsualBytes = std::size_t{64} << 10;

// The control link for all rails but the first, which owns it.
class SharedControl final : public Link {
 public:
  explicit SharedControl(Link* of) : of_(of) {}

  const char* kind() const override { return of_->kind(); }
  const char* address() const override { return of_->address(); }
  int lanes() const override { return of_->lanes(); }
  void Send(int lane, const OutMessage& message) override {
    of_->Send(lane, message);
  }
  bool Poll() override { return of_->Poll(); }
  void Resume(int lane) override { of_->Resume(lane); }
  bool PrepareToSleep() override { return true; }
  void WakeUp() override {}
  std::size_t queued_messages() const override {
    return of_->queued_messages();
  }
  void Close() override {}

 private:
  Link* const of_;
};

}  // namespace

RailsLink::RailsLink(int peer, std::size_t rails, std::unique_ptr<Link> control,
                     LinkEvents* events)
    : peer_(peer),
      events_(events),
      control_(std::move(control)),
      shared_control_(control_.get()) {
  for (std::size_t i = 0; i < rails; ++i) tellers_.emplace_back(this);
}

RailsLink::~RailsLink() { Close(); }

std::unique_ptr<Link> RailsLink::ControlOf(std::size_t rail) {
  if (rail == 0) return std::move(control_);
  return std::make_unique<SharedControl>(shared_control_);
}

void RailsLink::Take(std::vector<std::unique_ptr<RdmaLink>> links,
                     std::vector<std::unique_ptr<RdmaLink>> others) {
  assert(!links.empty() && links.front()->rail_number() == 0);
  links_ = std::move(links);
  others_ = std::move(others);
  for (std::size_t i = 0; i < links_.size(); ++i) {
    tellers_[links_[i]->rail_number()].SetPlace(static_cast<int>(i));
  }
  for (const auto& link : links_) link->Adopt();
}

int RailsLink::DataLane(std::uint64_t spread) {
  if (links_.size() == 1) return Link::DataLane(spread);
  return 1 + kLanesEach * static_cast<int>(QuickestOf(links_, kUsualBytes)) +
         static_cast<int>(spread % kLanesEach);
}

bool RailsLink::OthersDrained() const {
  return std::all_of(links_.begin() + 1, links_.end(),
                     [](const auto& link) { return link->drained(); });
}

// The first rail's link holds a good-bye for what that one has sent.
void RailsLink::Send(int lane, const OutMessage& message) {
  if (closed_) return;
  if (message.header.kind == MessageKind::kBye && !OthersDrained()) {
    held_.push_back(message);
  } else {
    OfLane(lane).Send(Inner(lane), message);
  }
}

bool RailsLink::SendHeld() {
  if (held_.empty() || !OthersDrained()) return false;
  for (const OutMessage& message : std::exchange(held_, {})) {
    links_.front()->Send(0, message);
  }
  return true;
}

// What one of them tells may end all.
bool RailsLink::Poll() {
  bool moved = false;
  for (const auto& link : links_) moved |= link->Poll();
  if (!closed_) moved |= SendHeld();
  return moved;
}

void RailsLink::Resume(int lane) { OfLane(lane).Resume(Inner(lane)); }

bool RailsLink::PrepareToSleep() {
  if (closed_) return true;
  if (!held_.empty() && OthersDrained()) return false;
  return std::all_of(links_.begin(), links_.end(),
                     [](const auto& link) { return link->PrepareToSleep(); });
}

std::size_t RailsLink::queued_messages() const {
  if (closed_) return 0;
  return links_.front()->queued_messages() + held_.size() +
         static_cast<std::size_t>(
             std::count_if(links_.begin() + 1, links_.end(),
                           [](const auto& link) { return !link->drained(); }));
}

// All cards let go of what was lent before anybody is told.
void RailsLink::OnDown(const Status& why) {
  if (closed_ || std::exchange(down_, true)) return;
  for (const auto& link : links_) link->End(why);
  for (const OutMessage& message : std::exchange(held_, {})) {
    links_.front()->Send(0, message);
  }
  events_->OnDown(peer_, why);
}

// The first one closes the control link that all of them have.
void RailsLink::Close() {
  if (std::exchange(closed_, true)) return;
  held_.clear();
  for (auto link = links_.rbegin(); link != links_.rend(); ++link) {
    (*link)->Close();
  }
}

Result<LinkEvents::Landing> RailsLink::Teller::OnHeader(int peer, int lane,
                                                        const Header& header) {
  if (lane > 0 || place_ == 0) {
    return owner_->events_->OnHeader(peer, Outer(lane), header);
  }
  return Status(StatusCode::kDataLoss,
                StrCat("rank ", peer, " (", owner_->address(),
                       "): sent a frame in lane 0 of its port number ", place_,
                       ", expected it by the first one"));
}

void RailsLink::Teller::OnMessage(int peer, int lane, const Header& header) {
  owner_->events_->OnMessage(peer, Outer(lane), header);
}

void RailsLink::Teller::OnDown(int peer, const Status& why) {
  static_cast<void>(peer);
  owner_->OnDown(why);
}

}  // namespace gradientflow
