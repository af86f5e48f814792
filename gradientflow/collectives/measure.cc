#include "gradientflow/collectives/measure.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <vector>

namespace gradientflow {
namespace {

constexpr std::size_t kSmallBytes = 8;
constexpr std::size_t kLargeBytes = std::size_t{256} << 10;
// The time of an exchange is the mean of the fastest of some batches: other
// programs only add to it. A rank that shares its core waits in some exchanges
// for those that it had a free run in, so that single ones mean little.
constexpr int kBatches = 4;
constexpr int kSmallBatch = 4;
constexpr int kLargeBatch = 2;

struct Sample {
  double one = 0;      // Seconds of an exchange of one small message,
  double several = 0;  // of `messages` small ones,
  double large = 0;    // and of one large one.
  double messages = 0;
};

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

  // At most four peers at a time, since an all-to-all serves so many in one
  // round. Shifts by one place go to and fro, so that no rank runs ahead.
  Result<Sample> Measure(bool across) {
    std::vector<Shift> all = {{0, 1}, {0, -1}, {0, 2}, {0, -2}};
    if (across && hosts_.size() == 2) {
      all = {{1, 0}, {-1, 0}, {1, 1}, {1, -1}};
    } else if (across) {
      all = {{1, 0}, {-1, 0}, {2, 0}, {-2, 0}};
    }
    const std::vector<CollectiveCall> small = {CallOf({all[0]}, kSmallBytes),
                                               CallOf({all[1]}, kSmallBytes)};
    const std::vector<CollectiveCall> several = {CallOf(all, kSmallBytes)};
    const std::vector<CollectiveCall> large = {CallOf({all[0]}, kLargeBytes),
                                               CallOf({all[1]}, kLargeBytes)};
    Sample sample;
    for (const std::size_t count : several[0].send_counts) {
      if (count > 0) ++sample.messages;
    }
    GF_RETURN_IF_ERROR(Time(small, kSmallBatch, &sample.one));
    GF_RETURN_IF_ERROR(Time(several, kSmallBatch, &sample.several));
    GF_RETURN_IF_ERROR(Time(large, kLargeBatch, &sample.large));
    return sample;
  }

 private:
  struct Place {
    std::size_t host = 0;
    std::size_t local = 0;
  };
  // From a rank to the one so many hosts and places further on, both counted
  // around. Only places that both hosts have take part.
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

  // Sets *seconds to the time of one of `calls`, which are run in turn.
  Status Time(const std::vector<CollectiveCall>& calls, int batch,
              double* seconds) {
    *seconds = std::numeric_limits<double>::infinity();
    for (int b = 0; b <= kBatches; ++b) {
      const Clock::Time begin = clock_.Now();
      for (int i = 0; i < batch; ++i) {
        CollectiveCall call = calls[static_cast<std::size_t>(i) % calls.size()];
        call.input = out_.data();
        call.output = in_.data();
        GF_RETURN_IF_ERROR(run_(call));
      }
      // The first batch warms up.
      const double mean = Seconds(clock_.Now() - begin) / batch;
      if (b > 0) *seconds = std::min(*seconds, mean);
    }
    return Status();
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

// `sharers`: so many ranks sent over one line at a time.
void Fit(const Sample& sample, int sharers, LinkModel* link) {
  double message = std::min(link->message_seconds, sample.one / 2);
  if (sample.messages > 1) {
    const double more = (sample.several - sample.one) / (sample.messages - 1);
    message = std::clamp(more, 1e-7, sample.several / sample.messages);
  }
  link->message_seconds = message;
  link->latency_seconds = std::max(sample.one - message, sample.one / 20);
  link->seconds_per_byte = std::max(sample.large - sample.one, 1e-9) /
                           static_cast<double>(kLargeBytes) / sharers;
}

Result<CostModel> MeasureModel(const CallGroup& group, bool alone,
                               const RunCall& run, const Clock& clock) {
  CostModel model = TypicalCostModel(group.hosts_share);
  const HostMap hosts(group.size, group.topology);
  Exchanges exchanges(group, alone, run, clock);
  Result<Sample> across = exchanges.Measure(true);
  if (!across.ok()) return across.status();
  Result<Sample> inside = Sample();
  if (hosts.largest() > 1) inside = exchanges.Measure(false);
  if (!inside.ok()) return inside.status();
  std::vector<double> slowest;
  for (const Sample* sample : {&across.value(), &inside.value()}) {
    slowest.insert(slowest.end(), {sample->one, sample->several, sample->large,
                                   sample->messages});
  }
  CollectiveCall agree;
  agree.output = slowest.data();
  agree.count = slowest.size();
  agree.dtype = agree.wire = DType::kFloat64;
  agree.op = ReduceOp::kMax;
  agree.group = group.id;
  GF_RETURN_IF_ERROR(run(agree));
  Fit({slowest[0], slowest[1], slowest[2], slowest[3]},
      alone ? 1 : hosts.largest(), &model.across);
  if (slowest[7] > 0) {
    Fit({slowest[4], slowest[5], slowest[6], slowest[7]}, 1, &model.inside);
  }
  return model;
}

}  // namespace

Result<CostModels> MeasureLinks(const CallGroup& group, const RunCall& run,
                                const Clock& clock) {
  CostModels models = TypicalCostModels(group.hosts_share);
  if (HostMap(group.size, group.topology).hosts() == 1) return models;
  for (const bool alone : {false, true}) {
    const Result<CostModel> model = MeasureModel(group, alone, run, clock);
    if (!model.ok()) return model.status();
    (alone ? models.alone : models.together) = model.value();
  }
  return models;
}

}  // namespace gradientflow
