#include "gradientflow/planner/cluster.h"

#include <algorithm>
#include <numeric>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::planner {
namespace {

// Bytes per second of the fastest size and number of streams, for as many ranks
// of a host at once as were probed and do not exceed `ranks`.
double BestRate(const PairLevels& levels, std::size_t ranks) {
  std::size_t at_once = 1;
  for (const Bandwidth& entry : levels.bandwidth) {
    if (entry.direction != Direction::kBothWays) continue;
    if (entry.ranks <= ranks) at_once = std::max(at_once, entry.ranks);
  }
  double best = 0;
  for (const Bandwidth& entry : levels.bandwidth) {
    if (entry.direction != Direction::kBothWays) continue;
    if (entry.ranks == at_once) {
      best = std::max(best, entry.bytes_per_second.p50);
    }
  }
  return best;
}

LinkModel LinkFrom(const PairLevels& levels, std::size_t ranks) {
  return {.latency_seconds = levels.latency_seconds.p50,
          .seconds_per_byte = 1 / BestRate(levels, ranks),
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

std::vector<int> SpreadRanks(int ranks, int per_host) {
  std::vector<int> hosts;
  for (; ranks > 0; ranks -= per_host) {
    hosts.push_back(std::min(ranks, per_host));
  }
  return hosts;
}

Result<PlannedCluster> ClusterFromProbe(const Probe& probe,
                                        const ClusterOptions& options) {
  PlannedCluster planned;
  Cluster& cluster = planned.cluster;
  cluster.host_ranks = SpreadRanks(options.ranks, options.ranks_per_host);
  cluster.segment_bytes = options.segment_bytes;
  cluster.segments_in_flight = options.segments_in_flight;
  cluster.memory_bytes_per_second = probe.memory_bytes_per_second.p50;
  const auto per_host =
      static_cast<std::size_t>(std::min(options.ranks_per_host, options.ranks));
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
  if (inside != nullptr) {
    cluster.costs.inside = LinkFrom(UnderLoadOf(*inside), 1);
    cluster.inside_backward_seconds_per_message = HostWorkOf(*inside);
  }
  if (across != nullptr) {
    const PairLevels& levels = UnderLoadOf(*across);
    cluster.costs.across = LinkFrom(levels, per_host);
    cluster.across_backward_seconds_per_message = HostWorkOf(*across);
    if (options.line_gbps > 0) {
      const double line = 1 / (options.line_gbps * 1e9 / 8 * kPayloadShare);
      planned.extrapolated.line = line < cluster.costs.across.seconds_per_byte;
      cluster.costs.across.seconds_per_byte = line;
    }
    planned.extrapolated.load = !across->loaded;
  }
  planned.extrapolated.inside = inside == nullptr && per_host > 1;
  planned.extrapolated.ranks = static_cast<std::size_t>(options.ranks) >
                               probe.hosts * probe.ranks_per_host;
  return planned;
}

}  // namespace gradientflow::planner
