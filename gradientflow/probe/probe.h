#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/communicator/communicator.h"
#include "gradientflow/probe/memory.h"
#include "gradientflow/probe/pair.h"

// What the network and the hosts of a job give: the numbers that
// gradientflow_plan predicts with.
namespace gradientflow {

struct ProbeOptions {
  double seconds = 0.4;  // Of each measurement, roughly.
  // Threads per rank that compute while the measurements under load run; 0: the
  // rank's share of the host's cores; -1: no measurements under load.
  int load_threads = 0;
};

// A flow, and how it went.
struct FlowResult {
  std::size_t message_bytes = 0;
  Direction direction = Direction::kFromLeader;
  int in_flight = 8;
  int connections = 0;  // Between the two ranks.
  bool under_load = false;
  FlowRate rate = {};
};

// What two ranks are to each other: of one host, or of two.
struct PairResult {
  static constexpr std::size_t kMostFlows = 24;
  bool measured = false;  // No if there is no such pair.
  int leader = 0;
  int follower = 0;
  std::array<char, 16> transport{};  // Its name.
  // While all pairs of the class do the same, as ranks do in a collective.
  MessageTimes latency;
  MessageTimes own_work;
  MessageTimes latency_under_load;
  MessageTimes own_work_under_load;
  MemoryRates reduce_under_load;
  // By how much threads that compute take longer for each small message that
  // the rank sends and receives meanwhile.
  MessageTimes backward_seconds_per_message;
  // How long a byte keeps the thread that drives, while that thread also passes
  // over memory; see PairLeader.
  double driver_seconds_per_byte = 0;
  std::array<FlowResult, kMostFlows> flows{};
  std::size_t flow_count = 0;
};

// Bytes per second that leave a host, while so many ranks of each of so many
// hosts send at once. Hosts are in pairs; of these, the slowest counts.
struct LineResult {
  int hosts = 2;
  int ranks = 1;
  bool under_load = false;
  double one_way = 0;
  double both_ways = 0;  // While as many come.
  // The messages by which that was reached.
  std::size_t one_way_bytes = 0;
  std::size_t both_ways_bytes = 0;
};

struct ProbeResult {
  int ranks = 1;
  int hosts = 1;
  int ranks_per_host = 1;  // The most.
  int cores_per_host = 1;  // Of rank 0's.
  int load_threads = 0;    // Of each rank under load; 0: none was made.
  PairResult inside;
  PairResult across;
  // With more than one rank of a host, or more than two hosts.
  std::vector<LineResult> lines;
  // What each rank reaches while all ranks of its host do the same; the slowest
  // rank's.
  MemoryRates reduce;
  MemoryRates reduce_in_cache;
  MemoryRates residual;
  // How long a rank takes for what CSC passes over at a time; the slowest's.
  MessageTimes pass_seconds;
};

// Makes a communicator like the first one, but with so many connections between
// two ranks. All ranks call it at the same time.
using Reopen =
    std::function<Result<std::shared_ptr<Communicator>>(int connections)>;

// Measures. A collective: all ranks make the call, and rank 0 gets the result,
// the others at least their part of it. `reopen` may be empty: flows over other
// numbers of connections are then left out.
Result<ProbeResult> Probe(Communicator& comm, const ProbeOptions& options,
                          const Reopen& reopen, const Clock& clock);

}  // namespace gradientflow
