#include "gradientflow/collectives/measure.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "gradientflow/collectives/choose.h"
#include "gradientflow/collectives/table.h"

namespace gradientflow {
namespace {

constexpr std::size_t kSmallBytes = 8;
constexpr auto kShortBytes = static_cast<std::size_t>(kShortMessageBytes);
constexpr std::size_t kLargeBytes = std::size_t{128} << 10;
// The time of an exchange is the mean of the fastest of some batches, because
// other programs only add to it. Where ranks share cores, single exchanges mean
// little: some are fast at the cost of the next ones. So a batch has many
// exchanges, except of those that keep a line between hosts busy for long. All
// kinds of exchanges are measured in two passes, so that a disturbance, or a
// cold start, of some milliseconds does not spoil all batches of a kind. Ranks
// that share cores fall in step after a few exchanges of a kind: the first
// batch of a pass is left out, except of large messages, which take longest.
constexpr int kPasses = 2;
// A batch is so many small messages down a tree and back. If the first one
// shows that ranks that wait cost something, the fastest of so many more
// counts.
constexpr int kTreesOfBatch = 4;
constexpr int kWaitingBatches = 4;
// What is less than this part of the price may be a disturbance.
constexpr double kNoise = 0.1;

// Seconds of the exchanges that are measured.
struct Sample {
  double one = 0;       // A small message with one peer,
  double moderate = 0;  // one of kShortBytes,
  double large = 0;     // and one of kLargeBytes.
  double several = 0;   // Small messages with `messages` peers.
  double messages = 0;
};
constexpr double Sample::*kSampleNumbers[] = {&Sample::one, &Sample::moderate,
                                              &Sample::large, &Sample::several,
                                              &Sample::messages};

class Exchanges {
 public:
  // If `alone`, only rank 0 and its peers exchange anything.
  Exchanges(const CallGroup& group, bool alone, const RunCall& run,
            const Clock& clock)
      : group_(group), alone_(alone), run_(run), clock_(clock) {
    std::map<int, std::size_t> numbers;
    for (int r = 0; r < group.size; ++r) {
      const int host = group.topology.host[static_cast<std::size_t>(r)];
      const auto [at, is_new] = numbers.emplace(host, hosts_.size());
      if (is_new) hosts_.emplace_back();
      places_.push_back({at->second, hosts_[at->second].size()});
      hosts_[at->second].push_back(r);
    }
  }

  // There are at most four peers at a time, since an all-to-all serves that
  // many in one round. Shifts by one place go to and fro, so that no rank runs
  // ahead.
  Result<Sample> Measure(bool across) {
    std::vector<Shift> all = {{0, 1}, {0, -1}, {0, 2}, {0, -2}};
    if (across && hosts_.size() == 2) {
      all = {{1, 0}, {-1, 0}, {1, 1}, {1, -1}};
    } else if (across) {
      all = {{1, 0}, {-1, 0}, {2, 0}, {-2, 0}};
    }
    Sample sample;
    const CollectiveCall several = CallOf(all, kSmallBytes);
    const auto one = [&](std::size_t bytes) {
      return std::vector{CallOf({all[0]}, bytes), CallOf({all[1]}, bytes)};
    };
    // Inside a host several exchanges take no longer than one across.
    const int times = across ? 2 : 8;
    // Large messages come before moderate ones, so that connections have
    // adapted by then.
    const std::vector<Batch> batches = {
        {8, one(kSmallBytes), 2, &sample.one},
        {8, {several}, 2, &sample.several},
        {times, one(kLargeBytes), 0, &sample.large},
        {times, one(kShortBytes), 1, &sample.moderate}};
    for (const std::size_t count : several.send_counts) {
      if (count > 0) ++sample.messages;
    }
    for (int pass = 0; pass < kPasses; ++pass) {
      for (const Batch& batch : batches) {
        for (int i = 0; i <= batch.more; ++i) {
          const Result<double> seconds = Time(batch);
          if (!seconds.ok()) return seconds.status();
          const bool warms_up = i == 0 && batch.more > 0;
          const bool first = *batch.seconds == 0;
          if (!warms_up && (first || seconds.value() < *batch.seconds)) {
            *batch.seconds = seconds.value();
          }
        }
      }
    }
    return sample;
  }

 private:
  struct Place {
    std::size_t host = 0;
    std::size_t local = 0;
  };
  // Exchanges that are timed together.
  struct Batch {
    int size = 1;                       // How many of them.
    std::vector<CollectiveCall> calls;  // Run in turn.
    int more = 1;  // Batches of a pass after the first, which warms up then.
    double* seconds = nullptr;  // Of one exchange: the result.
  };
  // Leads from a rank to the one that is this many hosts and places further on,
  // wrapping around in both. Only places that both hosts have take part.
  struct Shift {
    int hosts = 0;
    int locals = 0;
  };

  // The rank that a shift leads to from this rank, or -1.
  int Peer(const Shift& shift) const {
    const auto around = [](std::size_t at, int by, std::size_t size) {
      const int n = static_cast<int>(size);
      return static_cast<std::size_t>((static_cast<int>(at) + by + 2 * n) % n);
    };
    const auto [host, local] = places_[static_cast<std::size_t>(group_.rank)];
    const auto& there = hosts_[around(host, shift.hosts, hosts_.size())];
    const std::size_t places = std::min(hosts_[host].size(), there.size());
    if (local >= places) return -1;
    const int peer = there[around(local, shift.locals, places)];
    return peer == group_.rank ? -1 : peer;
  }

  bool TakesPart(int peer) const {
    return peer >= 0 && (!alone_ || peer == 0 || group_.rank == 0);
  }

  // An all-to-all in which only ranks that a shift joins exchange anything.
  CollectiveCall CallOf(const std::vector<Shift>& shifts, std::size_t bytes) {
    CollectiveCall call;
    call.kind = CollectiveKind::kAllToAll;
    call.dtype = call.wire = DType::kUInt8;
    call.send_counts.resize(static_cast<std::size_t>(group_.size));
    call.recv_counts.resize(static_cast<std::size_t>(group_.size));
    for (const Shift& shift : shifts) {
      const int to = Peer(shift);
      const int from = Peer({-shift.hosts, -shift.locals});
      if (TakesPart(to)) {
        call.send_counts[static_cast<std::size_t>(to)] = bytes;
      }
      if (TakesPart(from)) {
        call.recv_counts[static_cast<std::size_t>(from)] = bytes;
      }
    }
    out_.resize(std::max(out_.size(), bytes * shifts.size()));
    in_.resize(out_.size());
    call.group = group_.id;
    return call;
  }

  // Returns the seconds of one exchange of the batch, on average.
  Result<double> Time(const Batch& batch) {
    const Clock::Time begin = clock_.Now();
    for (int i = 0; i < batch.size; ++i) {
      GF_RETURN_IF_ERROR(
          Run(batch.calls[static_cast<std::size_t>(i) % batch.calls.size()]));
    }
    return Seconds(clock_.Now() - begin) / batch.size;
  }

  Status Run(CollectiveCall call) {
    call.input = out_.data();
    call.output = in_.data();
    return run_(call);
  }

  const CallGroup& group_;
  const bool alone_;
  const RunCall& run_;
  const Clock& clock_;
  std::vector<std::vector<int>> hosts_;  // The ranks of each host.
  std::vector<Place> places_;            // By rank.
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
};

// `sharers` is how many ranks sent over one line at a time.
void Fit(const Sample& sample, int sharers, LinkModel* link) {
  double message = std::min(link->message_seconds, sample.one / 2);
  if (sample.messages > 1) {
    const double more = (sample.several - sample.one) / (sample.messages - 1);
    message = std::clamp(more, 1e-7, sample.several / sample.messages);
  }
  link->message_seconds = message;
  link->latency_seconds = std::max(sample.one - message, sample.one / 20);
  const auto slope = [&](double more, std::size_t bytes) {
    return std::max(more, 0.0) / static_cast<double>(bytes) / sharers;
  };
  const double first = slope(sample.moderate - sample.one, kShortBytes);
  const double later =
      slope(sample.large - sample.moderate, kLargeBytes - kShortBytes);
  // A later byte costs no less. If it seems to, the moderate messages have
  // waited for a core, which says nothing about bytes.
  const double average = slope(sample.large - sample.one, kLargeBytes);
  link->seconds_per_byte = std::max(std::min(first, average), 1e-15);
  link->long_seconds_per_byte = std::max(later - first, 0.0);
}

// `model` has the numbers of links that are not measured.
Result<CostModel> MeasureModel(const CallGroup& group, bool alone,
                               CostModel model, const RunCall& run,
                               const Clock& clock) {
  const HostMap hosts(group.size, group.topology);
  Exchanges exchanges(group, alone, run, clock);
  Result<Sample> across = exchanges.Measure(true);
  if (!across.ok()) return across.status();
  Result<Sample> inside = Sample();
  if (hosts.largest() > 1) inside = exchanges.Measure(false);
  if (!inside.ok()) return inside.status();
  Sample* const samples[] = {&across.value(), &inside.value()};
  std::vector<double> slowest;
  for (const Sample* sample : samples) {
    for (const auto number : kSampleNumbers) {
      slowest.push_back(sample->*number);
    }
  }
  GF_RETURN_IF_ERROR(AgreeOnSlowest(run, group.id, slowest));
  auto agreed = slowest.begin();
  for (Sample* sample : samples) {
    for (const auto number : kSampleNumbers) sample->*number = *agreed++;
  }
  Fit(across.value(), alone ? 1 : hosts.largest(), &model.across);
  if (inside.value().messages > 0) Fit(inside.value(), 1, &model.inside);
  return model;
}

// A small message down a tree and back up.
class Trees {
 public:
  Trees(const CallGroup& group, const RunCall& run, const Clock& clock)
      : group_(group),
        hosts_(group.size, group.topology),
        run_(run),
        clock_(clock) {
    down_.kind = CollectiveKind::kBroadcast;
    down_.algorithm = &collectives::kTreeBroadcast;
    down_.output = &value_;
    up_.kind = CollectiveKind::kReduce;
    up_.algorithm = &collectives::kBinomialReduce;
    up_.input = &value_;
    up_.output = &sum_;
    for (CollectiveCall* call : {&down_, &up_}) {
      call->count = 1;
      call->group = group.id;
    }
  }

  Trees(const Trees&) = delete;
  Trees& operator=(const Trees&) = delete;

  // By what the costs say.
  double Price(const CostModels& costs) const {
    CallQuestion question;
    question.hosts = hosts_;
    question.count = 1;
    question.model = costs.together;
    question.alone = costs.alone;
    return PredictSeconds(down_.kind, *down_.algorithm, question) +
           PredictSeconds(up_.kind, *up_.algorithm, question);
  }

  // The sum over all rounds of the part of the ranks that only wait.
  double IdleRounds() const {
    double idle = 0;
    for (int k = 0; k < hosts_.doublings(); ++k) {
      idle += 2 * (1 - hosts_.BranchShare(k));
    }
    return idle;
  }

  // Returns what the slowest rank found: the mean of the fastest batch.
  Result<double> Time(int batches) {
    double least = 0;
    for (int batch = 0; batch < batches; ++batch) {
      const Clock::Time begin = clock_.Now();
      for (int i = 0; i < kTreesOfBatch; ++i) {
        GF_RETURN_IF_ERROR(run_(down_));
        GF_RETURN_IF_ERROR(run_(up_));
      }
      const double seconds = Seconds(clock_.Now() - begin) / kTreesOfBatch;
      if (batch == 0 || seconds < least) least = seconds;
    }
    GF_RETURN_IF_ERROR(AgreeOnSlowest(run_, group_.id, {&least, 1}));
    return least;
  }

 private:
  const CallGroup& group_;
  const HostMap hosts_;
  const RunCall& run_;
  const Clock& clock_;
  CollectiveCall down_;
  CollectiveCall up_;
  float value_ = 0;
  float sum_ = 0;
};

// What waiting ranks take from those that work. Where that is next to nothing,
// one batch is enough to show it: a round may take long.
Status MeasureWaiting(const CallGroup& group, const RunCall& run,
                      const Clock& clock, CostModels* costs) {
  Trees trees(group, run, clock);
  const double price = trees.Price(*costs);
  double waiting = 0;
  for (const int batches : {1, kWaitingBatches}) {
    const Result<double> seconds = trees.Time(batches);
    if (!seconds.ok()) return seconds.status();
    const double more = seconds.value() - price;
    waiting = more > kNoise * price ? more / trees.IdleRounds() : 0.0;
    if (waiting == 0) break;
  }
  costs->together.across.waiting_seconds = waiting;
  costs->together.inside.waiting_seconds = waiting;
  return Status();
}

}  // namespace

Status AgreeOnSlowest(const RunCall& run, GroupId group,
                      std::span<double> seconds) {
  CollectiveCall agree;
  agree.output = seconds.data();
  agree.count = seconds.size();
  agree.dtype = agree.wire = DType::kFloat64;
  agree.op = ReduceOp::kMax;
  agree.group = group;
  return run(agree);
}

Result<CostModels> MeasureLinks(const CallGroup& group, const RunCall& run,
                                const Clock& clock) {
  const CostModels models = TypicalCostModels(group.hosts_share);
  if (HostMap(group.size, group.topology).hosts() == 1) return models;
  Result<CostModel> together =
      MeasureModel(group, /*alone=*/false, models.together, run, clock);
  if (!together.ok()) return together.status();
  // Rank 0 may be alone on its host.
  Result<CostModel> alone =
      MeasureModel(group, /*alone=*/true, together.value(), run, clock);
  if (!alone.ok()) return alone.status();
  CostModels costs{together.value(), alone.value()};
  // Where links open when they are needed, a tree would open some for this.
  if (!group.few_links) {
    GF_RETURN_IF_ERROR(MeasureWaiting(group, run, clock, &costs));
  }
  return costs;
}

}  // namespace gradientflow
