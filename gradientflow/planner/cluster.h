#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/algorithm.h"
#include "gradientflow/collectives/cost_model.h"
#include "gradientflow/planner/probe.h"

namespace gradientflow::planner {

// The ranks of a job, and what their links, cores and memory give.
struct Cluster {
  std::vector<int> host_ranks = {1};  // Of each host; ranks are numbered so.
  CostModel costs;                    // While all ranks work.
  std::optional<CostModel> alone;     // While one does; unset: the same.
  bool hosts_share_memory = false;
  std::size_t segment_bytes = std::size_t{256} << 10;  // As in Options.
  int segments_in_flight = 8;
  const CollectiveAlgorithm* algorithm = nullptr;  // Null: the cheapest.
  // By how much a message that a rank sends, and one that it receives, make a
  // backward longer that runs meanwhile: on the same host, and between hosts.
  double inside_backward_seconds_per_message = 0;
  double across_backward_seconds_per_message = 0;
  // By how much a whole call that starts under backward does, whatever its
  // messages are: what can be fitted to runs of which only steps were measured.
  double backward_seconds_per_call = 0;
  // What a pass over memory reads and writes, both together.
  double memory_bytes_per_second = std::numeric_limits<double>::infinity();
  // The thread that drives makes CSC's passes and serves the wire between two
  // of them: how long one takes, and how long one byte sent and one byte
  // received together keep that thread.
  double pass_seconds = 0;
  double driver_seconds_per_byte = 0;

  int ranks() const;            // Adds up the hosts.
  int most_host_ranks() const;  // Of the host that has most.
  // Between hosts, if there are several.
  const LinkModel& slowest_link() const {
    return hosts() > 1 ? costs.across : costs.inside;
  }
  bool one_rank() const { return hosts() == 1 && host_ranks.front() == 1; }
  int hosts() const { return static_cast<int>(host_ranks.size()); }
};

// `ranks` ranks, `per_host` on each host; the last one may have fewer.
std::vector<int> SpreadRanks(int ranks, int per_host);

struct Host {
  int ranks = 1;
  double line_gbps = 0;  // 0: as probed.
};

// The hosts that a job may have.
struct HostOptions {
  // As many equal ones as it needs. A busy host gets the part of its line that
  // it got in the probe.
  int ranks_per_host = 1;
  double line_gbps = 0;
  // Or these, in the order in which a job takes them; then the two above do not
  // count. Of lines that differ the slowest counts, since every rank waits for
  // it, and all share it as the ranks of the fullest host do.
  std::vector<Host> hosts;

  // The hosts of so many ranks, of which the last may have fewer than it could.
  // kInvalidArgument if they do not have so many.
  Result<std::vector<Host>> HostsOf(int ranks) const;
  // The ranks of the first `count` hosts. REQUIRES that there are so many.
  int RanksOf(int count) const;
  void ScaleLines(double factor);
};

// What the user asks of the cluster beyond what was probed.
struct ClusterOptions : HostOptions {
  int ranks = 2;
  std::size_t segment_bytes = std::size_t{256} << 10;
  int segments_in_flight = 8;
};

// What of the cluster was not measured but inferred.
struct Extrapolated {
  bool ranks = false;           // More ranks than took part in the probe.
  bool ranks_per_host = false;  // More of them on a host than in the probe.
  bool line = false;            // A faster line than was probed.
  bool load = false;    // No levels under load: idle ones stand for them.
  bool inside = false;  // No pair on the same host: typical values are used.
  bool any() const { return ranks || ranks_per_host || line || load || inside; }
};

struct PlannedCluster {
  Cluster cluster;
  Extrapolated extrapolated;
};

// The part of a line's nominal rate that TCP's payload takes: 1448 of the 1538
// bytes that a full Ethernet frame keeps the line busy.
inline constexpr double kPayloadShare = 1448.0 / 1538.0;

// A line is another one than was probed if its payload is so many times what
// the probed one gave at rest. Below that it is the same, whose nominal rate
// was not reached, and the probe is believed.
inline constexpr double kFasterLine = 1.1;

// Returns kInvalidArgument if the probe has no pair that this cluster needs, or
// if there are more ranks than the hosts have.
Result<PlannedCluster> ClusterFromProbe(const Probe& probe,
                                        const ClusterOptions& options);

}  // namespace gradientflow::planner
