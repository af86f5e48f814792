#include "gradientflow/planner/step.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "gradientflow/planner/normal_max.h"

namespace gradientflow::planner {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Traffic {
  double end = 0;    // Of the last bucket.
  double delay = 0;  // Of backward.
  double busy = 0;   // Seconds in which a bucket was under way.
  double exposed(double backward) const {
    return std::max(0.0, end - backward - delay);
  }
  // By how much the exchange makes the step longer.
  double after(double backward) const { return exposed(backward) + delay; }
};

// By how much a call makes backward longer that begins `under` seconds before
// backward would end. Its messages are spread over all of it, so those that are
// sent after backward take nothing from it; what they take from it keeps it
// beside the call for longer.
double DelayOf(const Cluster& cluster, double under, double seconds,
               double host_seconds) {
  if (under <= 0) return 0;
  const double own = std::max(seconds - host_seconds, 0.0);
  const double part = under >= own ? 1 : under / own;
  return cluster.backward_seconds_per_call + part * host_seconds;
}

// When a message may begin, as far as its gradients and backward allow.
double BeginOf(const Workload& workload, const Exchange& exchange,
               const Message& message, double delay) {
  return std::max(message.ready_seconds + delay,
                  exchange.overlap ? 0.0 : workload.backward_seconds);
}

Traffic Run(const Workload& workload, const Exchange& exchange,
            const Bucketing& bucketing, const Cluster& cluster,
            const CallPrices& prices) {
  Traffic traffic;
  for (const Message& message : bucketing.messages) {
    const double seconds = prices.Seconds(message.bytes);
    const double begins = std::max(
        traffic.end, BeginOf(workload, exchange, message, traffic.delay));
    traffic.end = begins + seconds;
    traffic.busy += seconds;
    if (cluster.one_rank()) continue;
    traffic.delay +=
        DelayOf(cluster, workload.backward_seconds + traffic.delay - begins,
                seconds, prices.HostSeconds(message.bytes));
  }
  return traffic;
}

// A queue of passes, of which the first is made as soon as it is ready.
class Passes {
 public:
  explicit Passes(const std::vector<Pass>& queue) : queue_(queue) {}
  bool empty() const { return next_ == queue_.size(); }
  std::size_t made() const { return next_; }
  // When the first one is ready; never if there is none.
  double ReadyAt(double delay) const {
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

// A step with CSC's passes over host memory, which the thread that drives makes
// between two looks at the wire:
//
//   driver   pass ─ wire ─ pass ─ wire ─ pass ─ ...
//
// What is sent is passed over first, so the wire waits for that alone; what is
// kept is passed over meanwhile. While there is something to pass over, a round
// of messages waits for the end of a pass, and serving the wire takes time from
// the passes.
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
    const double round = cluster_.round_seconds();
    if (seconds_ > 0 && round > 0) {
      const double rounds = prices_.LatencySeconds(message.bytes) / round;
      const double slowed = seconds_ + rounds * cluster_.pass_seconds / 2;
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

Traffic RunStep(const Workload& workload, const Exchange& exchange,
                const Bucketing& bucketing, const Cluster& cluster,
                const CallPrices& prices) {
  if (!exchange.csc || std::isinf(cluster.memory_bytes_per_second)) {
    return Run(workload, exchange, bucketing, cluster, prices);
  }
  return CscStep(workload, exchange, bucketing, cluster, prices).Run();
}

void AddSlowest(const Workload& workload, const Cluster& cluster,
                StepTerms* terms) {
  if (workload.spread_fraction == 0) return;
  terms->slowest = workload.spread_fraction * workload.compute_seconds *
                   ExpectedMaximum(cluster.ranks());
  terms->step += terms->slowest;
}

}  // namespace

StepForecast PlayStep(const Workload& workload, const Exchange& exchange,
                      const Bucketing& bucketing, const Cluster& cluster,
                      const StepPrices& prices) {
  const Traffic traffic =
      Run(workload, exchange, bucketing, cluster, *prices.buckets);
  const double exposed = traffic.exposed(workload.backward_seconds);
  StepForecast forecast;
  forecast.theta_bytes = bucketing.theta_bytes;
  forecast.buckets = bucketing.messages.size();
  double latency = 0;
  for (const Message& message : bucketing.messages) {
    latency += prices.buckets->LatencySeconds(message.bytes);
    forecast.largest_bytes = std::max(forecast.largest_bytes, message.bytes);
  }
  StepTerms& terms = forecast.terms;
  terms.compute = workload.compute_seconds;
  terms.host = traffic.delay;
  terms.latency = traffic.busy > 0 ? exposed * latency / traffic.busy : 0.0;
  terms.bytes = exposed - terms.latency;
  terms.hidden = std::max(0.0, traffic.busy - exposed);
  if (exchange.csc) {
    const Traffic passing =
        RunStep(workload, exchange, bucketing, cluster, *prices.buckets);
    const auto norms = ChunksOf(workload, exchange) * sizeof(float);
    terms.csc = passing.after(workload.backward_seconds) -
                traffic.after(workload.backward_seconds) +
                prices.norms->Seconds(static_cast<double>(norms));
  }
  terms.step =
      terms.compute + terms.host + terms.latency + terms.bytes + terms.csc;
  AddSlowest(workload, cluster, &terms);
  return forecast;
}

// What does not depend on the buckets need not be compared.
StepForecast BestStep(const Workload& workload, const Exchange& exchange,
                      const std::vector<Bucketing>& bucketings,
                      const Cluster& cluster, const StepPrices& prices) {
  const Bucketing* best = nullptr;
  double least = 0;
  // From the largest buckets on, so that fewer win among equals.
  for (auto it = bucketings.rbegin(); it != bucketings.rend(); ++it) {
    const double backward = workload.backward_seconds;
    const double after =
        backward + RunStep(workload, exchange, *it, cluster, *prices.buckets)
                       .after(backward);
    if (best != nullptr && after >= least * (1 - 1e-9)) continue;
    best = &*it;
    least = after;
  }
  return PlayStep(workload, exchange, *best, cluster, prices);
}

}  // namespace gradientflow::planner
