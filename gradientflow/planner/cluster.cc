#include "gradientflow/planner/cluster.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/config/connections.h"

namespace gradientflow::planner {
namespace {

// How a bandwidth was measured, or is wanted.
struct Flows {
  std::size_t streams = 1;
  std::size_t ranks = 1;
  std::size_t hosts = 2;
  bool operator==(const Flows&) const = default;
};

// What comes closest to `wanted` of what was measured: as many ranks, or else
// the most below; of these as many hosts, or else the most below; of these as
// many streams, or else the nearest number.
Flows Closest(const PairLevels& levels, const Flows& wanted) {
  const auto distance = [&](const Flows& flows) {
    const auto apart = [](std::size_t a, std::size_t b) {
      return a > b ? a - b : b - a;
    };
    return std::tuple(apart(wanted.ranks, flows.ranks),
                      apart(wanted.hosts, flows.hosts),
                      apart(wanted.streams, flows.streams));
  };
  std::optional<Flows> closest;
  for (const Bandwidth& entry : levels.bandwidth) {
    if (entry.direction != Direction::kBothWays) continue;
    if (entry.ranks > std::max<std::size_t>(wanted.ranks, 1)) continue;
    if (entry.hosts > std::max<std::size_t>(wanted.hosts, 2)) continue;
    const Flows flows = {entry.streams, entry.ranks, entry.hosts};
    if (!closest || distance(flows) < distance(*closest)) closest = flows;
  }
  return closest.value_or(Flows{});
}

// Bytes per second of the fastest size; 0 if there is none.
double RateAt(const PairLevels& levels, const Flows& flows) {
  double best = 0;
  for (const Bandwidth& entry : levels.bandwidth) {
    if (entry.direction != Direction::kBothWays) continue;
    if (Flows{entry.streams, entry.ranks, entry.hosts} == flows) {
      best = std::max(best, entry.bytes_per_second.p50);
    }
  }
  return best;
}

// The same for `hosts` hosts, where those of `flows` are not more. If so many
// were not measured, but more of them were, and these got less, then all of
// them share something: together they get no more of it if they are fewer.
double RateAmong(const PairLevels& levels, const Flows& flows,
                 std::size_t hosts) {
  const double rate = RateAt(levels, flows);
  if (flows.hosts >= hosts) return rate;
  const Bandwidth* more = nullptr;
  for (const Bandwidth& entry : levels.bandwidth) {
    if (entry.direction != Direction::kBothWays) continue;
    if (entry.ranks != flows.ranks || entry.hosts <= hosts) continue;
    if (more == nullptr || entry.hosts < more->hosts) more = &entry;
  }
  if (more == nullptr) return rate;
  const Flows shared = {more->streams, more->ranks, more->hosts};
  const double together =
      RateAt(levels, shared) * static_cast<double>(more->hosts);
  return std::min(rate, together / static_cast<double>(hosts));
}

// Bytes per second of a line.
struct LineRates {
  double idle = 0;
  double loaded = 0;
};

LineRates RatesOf(const ProbedPair& pair, const Flows& wanted) {
  const Flows at_rest = Closest(pair.idle, wanted);
  LineRates rates;
  rates.idle = rates.loaded = RateAmong(pair.idle, at_rest, wanted.hosts);
  if (!pair.loaded) return rates;
  const Flows at = Closest(*pair.loaded, wanted);
  rates.loaded = RateAmong(*pair.loaded, at, wanted.hosts);
  const double same = RateAt(pair.idle, at);
  if (same == 0) return rates;
  // What was measured at rest only gets less under load by as much as what was
  // measured under load, too.
  const double reduced = rates.idle * RateAt(*pair.loaded, at) / same;
  rates.loaded = at == at_rest ? std::min(rates.loaded, reduced) : reduced;
  return rates;
}

// Puts a line of another rate in the place of the probed one.
struct LineChange {
  double bytes_per_second = 0;
  double probed = 0;  // At rest, of all ranks of a host.

  bool faster() const { return bytes_per_second > kFasterLine * probed; }
  // A faster line is one for whom the probed one was too slow. A rank alone may
  // be what was slow.
  void Apply(LineRates* rates) const {
    const double share = rates->loaded / rates->idle;
    const bool held_by_line = rates->idle * kFasterLine >= probed;
    rates->idle = faster() && held_by_line
                      ? bytes_per_second
                      : std::min(rates->idle, bytes_per_second);
    rates->loaded = share * rates->idle;
  }
};

LinkModel LinkFrom(const PairLevels& levels, double bytes_per_second) {
  return {.latency_seconds = levels.latency_seconds.p50,
          .seconds_per_byte = 1 / bytes_per_second,
          .reduce_seconds_per_byte = 1 / levels.reduce_bytes_per_second.p50,
          .message_seconds = levels.message_seconds.p50};
}

const PairLevels& UnderLoadOf(const ProbedPair& pair) {
  return pair.loaded ? *pair.loaded : pair.idle;
}

// By how much a message makes backward longer; 0 if that was not measured.
double HostWorkOf(const ProbedPair& pair) {
  const auto& work = UnderLoadOf(pair).backward_seconds_per_message;
  return work ? work->p50 : 0;
}

}  // namespace

int Cluster::ranks() const {
  return std::accumulate(host_ranks.begin(), host_ranks.end(), 0);
}

int Cluster::most_host_ranks() const {
  return *std::max_element(host_ranks.begin(), host_ranks.end());
}

std::vector<int> SpreadRanks(int ranks, int per_host) {
  std::vector<int> hosts;
  for (; ranks > 0; ranks -= per_host) {
    hosts.push_back(std::min(ranks, per_host));
  }
  return hosts;
}

Result<std::vector<Host>> HostOptions::HostsOf(int ranks) const {
  std::vector<Host> taken;
  if (hosts.empty()) {
    for (const int each : SpreadRanks(ranks, ranks_per_host)) {
      taken.push_back({each, line_gbps});
    }
    return taken;
  }
  int left = ranks;
  for (auto host = hosts.begin(); left > 0 && host != hosts.end(); ++host) {
    taken.push_back({std::min(left, host->ranks), host->line_gbps});
    left -= taken.back().ranks;
  }
  if (left <= 0) return taken;
  return Status(StatusCode::kInvalidArgument,
                StrCat("ranks: expected at most the ", ranks - left,
                       " that the hosts have, seen ", ranks));
}

int HostOptions::RanksOf(int count) const {
  if (hosts.empty()) return count * ranks_per_host;
  return std::accumulate(
      hosts.begin(), hosts.begin() + count, 0,
      [](int sum, const Host& host) { return sum + host.ranks; });
}

void HostOptions::ScaleLines(double factor) {
  line_gbps *= factor;
  for (Host& host : hosts) host.line_gbps *= factor;
}

namespace {

std::size_t StreamsOf(const ProbedPair& pair, int ranks) {
  if (pair.transport != "tcp") return 1;
  return static_cast<std::size_t>(ConnectionsByRanks(ranks));
}

void AddInside(const ProbedPair& pair, Cluster* cluster) {
  const LineRates rates = RatesOf(pair, {StreamsOf(pair, cluster->ranks()), 1});
  cluster->costs.inside = LinkFrom(UnderLoadOf(pair), rates.loaded);
  cluster->inside_backward_seconds_per_message = HostWorkOf(pair);
}

// What the ranks of a host get of its line, together and one alone.
struct HostRates {
  LineRates shared;
  LineRates one;
  bool faster = false;  // Than what was probed.
};

HostRates RatesOn(double line_gbps, HostRates probed) {
  if (line_gbps <= 0) return probed;
  const LineChange line = {line_gbps * 1e9 / 8 * kPayloadShare,
                           probed.shared.idle};
  probed.faster = line.faster();
  line.Apply(&probed.shared);
  line.Apply(&probed.one);
  return probed;
}

void AddAcross(const ProbedPair& pair, const std::vector<Host>& hosts,
               PlannedCluster* planned) {
  Cluster& cluster = planned->cluster;
  const std::size_t streams = StreamsOf(pair, cluster.ranks());
  const auto per_host = static_cast<std::size_t>(cluster.most_host_ranks());
  const HostRates probed = {RatesOf(pair, {streams, per_host, hosts.size()}),
                            RatesOf(pair, {streams, 1})};
  HostRates slowest = RatesOn(hosts.front().line_gbps, probed);
  for (const Host& host : hosts) {
    const HostRates rates = RatesOn(host.line_gbps, probed);
    if (rates.shared.loaded < slowest.shared.loaded) slowest = rates;
  }
  planned->extrapolated.line = slowest.faster;
  cluster.costs.across = LinkFrom(UnderLoadOf(pair), slowest.shared.loaded);
  if (per_host > 1 && slowest.one.loaded < slowest.shared.loaded) {
    cluster.alone = cluster.costs;
    cluster.alone->across.seconds_per_byte = 1 / slowest.one.loaded;
  }
  cluster.across_backward_seconds_per_message = HostWorkOf(pair);
  planned->extrapolated.load = !pair.loaded;
}

}  // namespace

Result<PlannedCluster> ClusterFromProbe(const Probe& probe,
                                        const ClusterOptions& options) {
  const Result<std::vector<Host>> hosts = options.HostsOf(options.ranks);
  if (!hosts.ok()) return hosts.status();
  PlannedCluster planned;
  Cluster& cluster = planned.cluster;
  cluster.host_ranks.clear();
  for (const Host& host : hosts.value()) {
    cluster.host_ranks.push_back(host.ranks);
  }
  cluster.segment_bytes = options.segment_bytes;
  cluster.segments_in_flight = options.segments_in_flight;
  cluster.memory_bytes_per_second = probe.memory_bytes_per_second.p50;
  if (probe.pass_seconds) cluster.pass_seconds = probe.pass_seconds->p50;
  const auto per_host = static_cast<std::size_t>(cluster.most_host_ranks());
  const ProbedPair* inside = FindPair(probe, PairClass::kSameHost);
  const ProbedPair* across = FindPair(probe, PairClass::kOtherHost);
  if (cluster.hosts() > 1 && across == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("probe: pairs: ", cluster.hosts(),
                         " hosts need a pair of class other_host"));
  }
  cluster.hosts_share_memory =
      inside == nullptr ? true : inside->transport == "shm";
  cluster.costs = TypicalCostModel(cluster.hosts_share_memory);
  if (inside != nullptr) AddInside(*inside, &cluster);
  if (across != nullptr) AddAcross(*across, hosts.value(), &planned);
  const ProbedPair* const used = cluster.hosts() > 1 ? across : inside;
  if (used != nullptr && used->idle.driver_seconds_per_byte) {
    cluster.driver_seconds_per_byte = used->idle.driver_seconds_per_byte->p50;
  }
  planned.extrapolated.inside = inside == nullptr && per_host > 1;
  planned.extrapolated.ranks_per_host = per_host > probe.ranks_per_host;
  planned.extrapolated.ranks = static_cast<std::size_t>(options.ranks) >
                               probe.hosts * probe.ranks_per_host;
  return planned;
}

}  // namespace gradientflow::planner
