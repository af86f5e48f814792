#include "gradientflow/planner/csc_step.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

// The thread that drives makes CSC's passes over host memory between two looks
// at the wire:
//
//   driver   pass ─ wire ─ pass ─ wire ─ pass ─ ...
//
// What is sent is passed over first, so the wire waits for that alone; what is
// kept is passed over meanwhile. While there is something to pass over, a round
// of messages waits for the end of a pass, and serving the wire takes time from
// the passes.
namespace gradientflow::planner {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// A queue of passes, of which the first is made as soon as it is ready.
class Passes {
 public:
  explicit Passes(const std::vector<Pass>& queue) : queue_(queue) {}
  bool empty() const { return next_ == queue_.size(); }
  std::size_t made() const { return next_; }
  // When the first one is ready; never if there is none. One under way stays
  // ready, whatever delays backward meanwhile.
  double ReadyAt(double delay) const {
    if (done_ > 0) return 0;
    return empty() ? kNever : queue_[next_].ready_seconds + delay;
  }
  double SecondsLeft(double bytes_per_second) const {
    return (queue_[next_].bytes - done_) / bytes_per_second;
  }
  void Advance(double bytes) { done_ += bytes; }
  void Finish() {
    ++next_;
    done_ = 0;
  }

 private:
  const std::vector<Pass>& queue_;
  std::size_t next_ = 0;
  double done_ = 0;  // Bytes of the first one.
};

class CscStep {
 public:
  CscStep(const Workload& workload, const Exchange& exchange,
          const Bucketing& bucketing, const Cluster& cluster,
          const CallPrices& prices)
      : workload_(workload),
        exchange_(exchange),
        messages_(bucketing.messages),
        cluster_(cluster),
        prices_(prices),
        sent_(bucketing.sent),
        kept_(bucketing.kept) {}

  Traffic Run() {
    while (on_wire_ || next_ < messages_.size() || !sent_.empty() ||
           !kept_.empty()) {
      if (!on_wire_ && MayBegin()) Begin();
      Advance();
    }
    traffic_.end = now_;
    return traffic_;
  }

 private:
  static constexpr double kLeastShare = 0.05;  // Of the driver, for passes.

  double NextBegin() const {
    return next_ == messages_.size()
               ? kNever
               : BeginOf(workload_, exchange_, messages_[next_],
                         traffic_.delay);
  }
  bool MayBegin() const {
    return next_ < messages_.size() &&
           sent_.made() >= messages_[next_].passes_end && NextBegin() <= now_;
  }

  void Begin() {
    const Message& message = messages_[next_++];
    on_wire_ = true;
    seconds_ = left_ = prices_.Seconds(message.bytes);
    traffic_.busy += seconds_;
    const int ranks = cluster_.ranks();
    const double sent = 2.0 * (ranks - 1) / ranks * message.bytes;
    driver_share_ = 0;
    stretch_ = 1;
    if (seconds_ > 0) {
      const double waits = prices_.Rounds(message.bytes) / 2;
      const double slowed = seconds_ + waits * cluster_.pass_seconds;
      stretch_ = slowed / seconds_;
      const double driver = sent * cluster_.driver_seconds_per_byte;
      driver_share_ = std::min(driver / slowed, 1 - kLeastShare);
    }
    if (cluster_.one_rank()) return;
    traffic_.delay +=
        DelayOf(cluster_, workload_.backward_seconds + traffic_.delay - now_,
                seconds_, prices_.HostSeconds(message.bytes));
  }

  // Until something ends, or becomes ready.
  void Advance() {
    const double delay = traffic_.delay;
    Passes* const passing = sent_.ReadyAt(delay) <= now_   ? &sent_
                            : kept_.ReadyAt(delay) <= now_ ? &kept_
                                                           : nullptr;
    const double speed = passing != nullptr ? 1 / stretch_ : 1;
    const double memory =
        cluster_.memory_bytes_per_second * (on_wire_ ? 1 - driver_share_ : 1);
    const double wire_ends = on_wire_ ? now_ + left_ / speed : kNever;
    const double pass_ends =
        passing != nullptr ? now_ + passing->SecondsLeft(memory) : kNever;
    double next = std::min(wire_ends, pass_ends);
    for (const double at :
         {sent_.ReadyAt(delay), kept_.ReadyAt(delay), NextBegin()}) {
      if (at > now_) next = std::min(next, at);
    }
    const double seconds = next - now_;
    now_ = next;
    left_ -= seconds * speed;
    if (wire_ends <= next) on_wire_ = false;
    if (passing == nullptr) return;
    if (pass_ends <= next) {
      passing->Finish();
    } else {
      passing->Advance(seconds * memory);
    }
  }

  const Workload& workload_;
  const Exchange& exchange_;
  const std::vector<Message>& messages_;
  const Cluster& cluster_;
  const CallPrices& prices_;
  Passes sent_;
  Passes kept_;
  std::size_t next_ = 0;  // Message.
  // The message under way: what it takes by itself, and what of that is left;
  // how much longer it takes beside passes, and its share of the driver.
  bool on_wire_ = false;
  double seconds_ = 0;
  double left_ = 0;
  double stretch_ = 1;
  double driver_share_ = 0;
  double now_ = 0;
  Traffic traffic_;
};

}  // namespace

Traffic PlayCscTraffic(const Workload& workload, const Exchange& exchange,
                       const Bucketing& bucketing, const Cluster& cluster,
                       const CallPrices& prices) {
  return CscStep(workload, exchange, bucketing, cluster, prices).Run();
}

}  // namespace gradientflow::planner
