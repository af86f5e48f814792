#pragma once

#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "transports/link.h"

namespace gradientflow::faults {

// The faults of a data message, each with its probability.
struct Mischief {
  double drop = 0;
  double delay = 0;
  double truncate = 0;
  double duplicate = 0;
};

// A link that mistreats data messages as networks and bugs do. Control messages
// pass. It lives as long as the link that it wraps.
class BadLink final : public Link {
 public:
  BadLink(std::unique_ptr<Link> link, const Mischief& mischief, unsigned seed)
      : link_(std::move(link)), mischief_(mischief), random_(seed) {}

  const char* kind() const override { return link_->kind(); }
  const char* address() const override { return link_->address(); }
  int lanes() const override { return link_->lanes(); }
  bool sockets_carry_data() const override {
    return link_->sockets_carry_data();
  }

  void Send(int lane, const OutMessage& message) override {
    if (message.header.kind != MessageKind::kData ||
        messages_++ < kGoodMessages) {
      return link_->Send(lane, message);
    }
    if (Happens(mischief_.drop)) {
      dropped_.push_back(message.done);
    } else if (Happens(mischief_.delay)) {
      delayed_.push_back({lane, message, static_cast<int>(random_() % 200)});
    } else if (Happens(mischief_.truncate) && message.payload.bytes > 0) {
      OutMessage shorter = message;
      shorter.payload.bytes = random_() % message.payload.bytes;
      shorter.header.payload_bytes = shorter.payload.bytes;
      link_->Send(lane, shorter);
    } else if (Happens(mischief_.duplicate)) {
      copies_.emplace_back(message.payload.data,
                           message.payload.data + message.payload.bytes);
      OutMessage again = message;
      again.payload.data = copies_.back().data();
      again.done = {};
      link_->Send(lane, message);
      link_->Send(lane, again);
    } else {
      link_->Send(lane, message);
    }
  }

  bool Poll() override {
    bool moved = false;
    for (const Done& done : std::exchange(dropped_, {})) {
      done(Status());
      moved = true;
    }
    for (std::size_t i = delayed_.size(); i-- > 0;) {
      if (delayed_[i].polls-- > 0) continue;
      link_->Send(delayed_[i].lane, delayed_[i].message);
      delayed_.erase(delayed_.begin() + static_cast<std::ptrdiff_t>(i));
      moved = true;
    }
    return link_->Poll() || moved;
  }

  void Resume(int lane) override { link_->Resume(lane); }
  bool PrepareToSleep() override {
    return link_->PrepareToSleep() && delayed_.empty() && dropped_.empty();
  }
  void WakeUp() override { link_->WakeUp(); }
  void Beat() override { link_->Beat(); }
  std::uint64_t beats() const override { return link_->beats(); }
  std::size_t queued_messages() const override {
    return link_->queued_messages() + delayed_.size();
  }
  void Close() override {
    dropped_.clear();
    delayed_.clear();
    link_->Close();
  }

 private:
  // So many messages pass first, so that the ranks can meet.
  static constexpr std::uint64_t kGoodMessages = 120;
  struct Delayed {
    int lane;
    OutMessage message;
    int polls;
  };

  bool Happens(double probability) {
    return std::uniform_real_distribution<double>(0, 1)(random_) < probability;
  }

  const std::unique_ptr<Link> link_;
  const Mischief mischief_;
  std::mt19937 random_;
  std::uint64_t messages_ = 0;
  std::vector<Done> dropped_;
  std::vector<Delayed> delayed_;
  std::deque<std::vector<std::byte>> copies_;
};

}  // namespace gradientflow::faults
