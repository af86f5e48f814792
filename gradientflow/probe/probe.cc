#include "gradientflow/probe/probe.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <string_view>
#include <thread>

#include "gradientflow/base/quantile.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/communicator/core.h"
#include "gradientflow/communicator/transport.h"
#include "gradientflow/probe/calls.h"
#include "gradientflow/probe/host_pairs.h"
#include "gradientflow/probe/load.h"

// All ranks go through the same list of measurements. In each, some of them are
// pairs, and the others wait at the barrier after it.
namespace gradientflow {
namespace {

constexpr std::size_t kLarge = std::size_t{2} << 20;
constexpr std::size_t kSizes[] = {std::size_t{32} << 10, std::size_t{256} << 10,
                                  kLarge};
// Large messages lose to the caches if ranks share their cores.
constexpr std::size_t kLineSizes[] = {std::size_t{256} << 10, kLarge};
// Too short for io threads, as most messages of an allreduce are: the thread
// that drives moves them itself.
constexpr std::size_t kDriven = std::size_t{192} << 10;
constexpr int kDrivenFlows = 7;
constexpr int kConnections[] = {1, 2, 4};
constexpr int kLoadWindows = 10;
constexpr std::size_t kInCache = std::size_t{256} << 10;
constexpr std::size_t kInMemory = std::size_t{32} << 20;

std::vector<int> HostOfEach(const CallGroup& group) {
  if (!group.topology.host.empty()) return group.topology.host;
  std::vector<int> each(static_cast<std::size_t>(group.size));
  std::iota(each.begin(), each.end(), 0);
  return each;
}

class Prober {
 public:
  Prober(Communicator& comm, const ProbeOptions& options, const Reopen& reopen,
         const Clock& clock)
      : comm_(comm),
        options_(options),
        reopen_(reopen),
        clock_(clock),
        hosts_(HostOfEach(comm.core().group())),
        workers_(
            ComputeThreads(comm.options().compute_threads, comm.core().cores()),
            comm.core().spin()),
        residual_(kInMemory, workers_),
        pass_([this] { residual_.Make(); }) {}

  Result<ProbeResult> Run() {
    result_.ranks = comm_.size();
    result_.hosts = hosts_.hosts();
    result_.ranks_per_host = hosts_.most();
    result_.cores_per_host =
        static_cast<int>(std::max(std::thread::hardware_concurrency(), 1U));
    result_.load_threads = options_.load_threads < 0 ? 0 : LoadThreads();
    GF_RETURN_IF_ERROR(Memory());
    GF_RETURN_IF_ERROR(OfClass(hosts_.Inside(), &result_.inside));
    GF_RETURN_IF_ERROR(OfClass(hosts_.Across(), &result_.across));
    GF_RETURN_IF_ERROR(Lines(/*under_load=*/false));
    if (options_.load_threads >= 0) {
      const ComputeLoad load(LoadThreads());
      GF_RETURN_IF_ERROR(Lines(/*under_load=*/true));
    }
    if (result_.across.measured && reopen_) {
      for (const int connections : kConnections) {
        if (connections == ConnectionsOf(result_.across)) continue;
        GF_RETURN_IF_ERROR(Connections(connections));
      }
      GF_RETURN_IF_ERROR(
          Broadcast(comm_, result_.across.leader, &result_.across));
    }
    return result_;
  }

 private:
  Status Memory() {
    const auto measure = [&](const MemoryWork& work, MemoryRates* rates) {
      return Assign(MeasureTogether(comm_, work, options_.seconds / 2, clock_),
                    rates);
    };
    GF_RETURN_IF_ERROR(measure(ReduceWork(kInMemory), &result_.reduce));
    GF_RETURN_IF_ERROR(measure(ReduceWork(kInCache), &result_.reduce_in_cache));
    const MemoryWork passes = residual_.Work();
    GF_RETURN_IF_ERROR(measure(passes, &result_.residual));
    // A rank with more threads passes over more at a time.
    std::vector<double> most = {passes.bytes};
    GF_RETURN_IF_ERROR(Allreduce(comm_, ReduceOp::kMax, &most));
    result_.pass_seconds = {most[0] / result_.residual.p50,
                            most[0] / result_.residual.p99};
    return Status();
  }

  // What links two ranks of a host, or of two hosts.
  std::string_view TransportOf(bool inside) const {
    const CommunicatorCore& core = comm_.core();
    if (core.options().fabric != "auto") return core.options().fabric;
    if (inside) return core.group().hosts_share ? "shm" : "tcp";
    return core.writes() != nullptr ? "rdma" : "tcp";
  }
  int ConnectionsOf(const PairResult& pair) const {
    return pair.transport[0] == 't' ? ConnectionsPerPeer(comm_.options()) : 1;
  }

  int LoadThreads() const {
    return options_.load_threads > 0 ? options_.load_threads
                                     : comm_.core().cores();
  }

  // The first pair measures; in what all of them do at once, the others are
  // its company.
  Status OfClass(const HostPairs::Pairs& pairs, PairResult* result) {
    if (pairs.empty()) return Status();
    const HostPairs::Pair& first = pairs.front();
    result->measured = true;
    result->leader = first.leader;
    result->follower = first.follower;
    const std::string_view transport = TransportOf(result == &result_.inside);
    std::copy(transport.begin(), transport.end(), result->transport.begin());
    GF_RETURN_IF_ERROR(AsPairs(comm_, pairs, [&](PairLeader& leader) {
      return Messages(leader, &result->latency, &result->own_work);
    }));
    GF_RETURN_IF_ERROR(AsPairs(comm_, {first}, [&](PairLeader& leader) {
      return AtRest(leader, result);
    }));
    GF_RETURN_IF_ERROR(
        Assign(DriverSecondsPerByte(pairs), &result->driver_seconds_per_byte));
    if (options_.load_threads >= 0) {
      // Backward runs on all ranks at the same time.
      ComputeLoad load(LoadThreads());
      GF_RETURN_IF_ERROR(AsPairs(comm_, pairs, [&](PairLeader& leader) {
        return Messages(leader, &result->latency_under_load,
                        &result->own_work_under_load);
      }));
      GF_RETURN_IF_ERROR(AsPairs(comm_, {first}, [&](PairLeader& leader) {
        return UnderLoad(leader, load, result);
      }));
    }
    return Broadcast(comm_, first.leader, result);
  }

  // All ranks pass over their gradients at the same time. Where pairs share
  // cores, one gains what another one loses: the mean of them counts. Which
  // threads share a core may stay the same for as long as a flow lasts, so the
  // middle of several flows counts, between which all ranks wait for each
  // other.
  Result<double> DriverSecondsPerByte(const HostPairs::Pairs& pairs) {
    std::vector<double> flows;
    for (int i = 0; i < kDrivenFlows; ++i) {
      std::vector<double> sum(1);
      GF_RETURN_IF_ERROR(AsPairs(comm_, pairs, [&](PairLeader& leader) {
        return Assign(
            leader.DriverSecondsPerByte(kDriven, options_.seconds / 2),
            sum.data());
      }));
      GF_RETURN_IF_ERROR(Allreduce(comm_, ReduceOp::kSum, &sum));
      flows.push_back(sum[0] / static_cast<double>(pairs.size()));
    }
    return Quantile(flows, 0.5);
  }

  // Runs `lead` on the leaders of all these pairs at once. Returns when all
  // pairs are done.
  template <typename Lead>
  Status AsPairs(Communicator& comm, const HostPairs::Pairs& pairs,
                 const Lead& lead) {
    GF_RETURN_IF_ERROR(Barrier(comm));
    for (const HostPairs::Pair& pair : pairs) {
      if (comm.rank() == pair.leader) {
        PairLeader leader(comm, pair.follower, clock_, pass_);
        GF_RETURN_IF_ERROR(lead(leader));
        GF_RETURN_IF_ERROR(leader.End());
      } else if (comm.rank() == pair.follower) {
        GF_RETURN_IF_ERROR(FollowPair(comm, pair.leader, clock_, pass_));
      }
    }
    return Barrier(comm);
  }

  Status Messages(PairLeader& leader, MessageTimes* latency,
                  MessageTimes* own_work) const {
    GF_RETURN_IF_ERROR(Assign(leader.Latency(options_.seconds), latency));
    return Assign(leader.OwnWork(options_.seconds), own_work);
  }

  Status Measure(PairLeader& leader, FlowResult flow,
                 PairResult* result) const {
    if (result->flow_count == PairResult::kMostFlows) return Status();
    const Result<FlowRate> rate = leader.Rate(
        {flow.message_bytes, flow.direction, flow.in_flight, options_.seconds});
    if (!rate.ok()) return rate.status();
    flow.rate = rate.value();
    result->flows[result->flow_count++] = flow;
    return Status();
  }

  Status AtRest(PairLeader& leader, PairResult* result) const {
    const int connections = ConnectionsOf(*result);
    for (const std::size_t bytes : kSizes) {
      for (const Direction direction :
           {Direction::kFromLeader, Direction::kToLeader, Direction::kBoth}) {
        if (bytes != kLarge && direction == Direction::kToLeader) continue;
        GF_RETURN_IF_ERROR(Measure(leader,
                                   {.message_bytes = bytes,
                                    .direction = direction,
                                    .connections = connections},
                                   result));
      }
    }
    return Status();
  }

  Status UnderLoad(PairLeader& leader, const ComputeLoad& load,
                   PairResult* result) const {
    GF_RETURN_IF_ERROR(
        Assign(Longer(leader, load), &result->backward_seconds_per_message));
    result->reduce_under_load =
        MeasureAlone(ReduceWork(kInCache), options_.seconds / 4, clock_);
    for (const Direction direction :
         {Direction::kFromLeader, Direction::kBoth}) {
      GF_RETURN_IF_ERROR(Measure(leader,
                                 {.message_bytes = kLarge,
                                  .direction = direction,
                                  .connections = ConnectionsOf(*result),
                                  .under_load = true},
                                 result));
    }
    return Status();
  }

  // By how much a message makes the load's work longer. Intervals with and
  // without messages take turns, since hosts change their clocks.
  Result<MessageTimes> Longer(PairLeader& leader,
                              const ComputeLoad& load) const {
    const double seconds = options_.seconds / kLoadWindows;
    std::vector<double> each;
    for (int i = 0; i < kLoadWindows; ++i) {
      const Result<LoadWindow> alone = WindowOf(load, [&] {
        std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
        return Result<std::uint64_t>(std::uint64_t{0});
      });
      const Result<LoadWindow> beside =
          WindowOf(load, [&] { return leader.Messages(seconds); });
      if (!beside.ok()) return beside.status();
      if (alone.value().products == 0) continue;
      each.push_back(LongerPerMessage(alone.value(), beside.value()));
    }
    if (each.empty()) return MessageTimes{};
    return MessageTimes{std::max(Quantile(each, 0.5), 0.0),
                        std::max(Quantile(each, 0.99), 0.0)};
  }

  // What the load did while `work` ran, which returns a number of messages.
  Result<LoadWindow> WindowOf(
      const ComputeLoad& load,
      const std::function<Result<std::uint64_t>()>& work) const {
    const std::uint64_t before = load.products();
    const Clock::Time begin = clock_.Now();
    const Result<std::uint64_t> messages = work();
    if (!messages.ok()) return messages.status();
    LoadWindow window;
    window.seconds = Seconds(clock_.Now() - begin);
    window.products = static_cast<double>(load.products() - before);
    window.messages = static_cast<double>(messages.value());
    return window;
  }

  template <typename T>
  static Status Assign(const Result<T>& from, T* to) {
    if (!from.ok()) return from.status();
    *to = from.value();
    return Status();
  }

  // The ranks of two hosts at once, then those of all hosts; one pair alone is
  // measured already.
  Status Lines(bool under_load) {
    const HostPairs::Pairs all = hosts_.Across();
    HostPairs::Pairs of_two;
    for (const HostPairs::Pair& pair : all) {
      if (pair.host == 0) of_two.push_back(pair);
    }
    if (of_two.size() > 1) GF_RETURN_IF_ERROR(Line(of_two, under_load));
    if (all.size() > of_two.size()) GF_RETURN_IF_ERROR(Line(all, under_load));
    return Status();
  }

  Status Line(const HostPairs::Pairs& pairs, bool under_load) {
    const int leading = pairs.back().host + 1;
    LineResult line;
    line.hosts = 2 * leading;
    line.ranks = static_cast<int>(std::count_if(
        pairs.begin(), pairs.end(),
        [](const HostPairs::Pair& pair) { return pair.host == 0; }));
    line.under_load = under_load;
    for (const Direction direction :
         {Direction::kFromLeader, Direction::kBoth}) {
      const bool both = direction == Direction::kBoth;
      double& best = both ? line.both_ways : line.one_way;
      std::size_t& best_bytes =
          both ? line.both_ways_bytes : line.one_way_bytes;
      for (const std::size_t bytes : kLineSizes) {
        const Result<double> rate =
            SlowestHost(pairs, {.message_bytes = bytes,
                                .direction = direction,
                                .seconds = options_.seconds});
        if (!rate.ok()) return rate.status();
        if (rate.value() <= best) continue;
        best = rate.value();
        best_bytes = bytes;
      }
    }
    result_.lines.push_back(line);
    return Status();
  }

  // What each of the hosts that lead gets at least if all pairs have the flow.
  Result<double> SlowestHost(const HostPairs::Pairs& pairs, const Flow& flow) {
    std::vector<double> hosts(static_cast<std::size_t>(pairs.back().host + 1));
    GF_RETURN_IF_ERROR(AsPairs(comm_, pairs, [&](PairLeader& leader) {
      const Result<FlowRate> rate = leader.Rate(flow);
      if (!rate.ok()) return rate.status();
      const int host = hosts_.HostOf(comm_.rank());
      hosts[static_cast<std::size_t>(host)] = rate.value().mean;
      return Status();
    }));
    GF_RETURN_IF_ERROR(Allreduce(comm_, ReduceOp::kSum, &hosts));
    return *std::min_element(hosts.begin(), hosts.end());
  }

  Status Connections(int connections) {
    const auto comm = reopen_(connections);
    if (!comm.ok()) return comm.status();
    const HostPairs::Pairs first = {hosts_.Across().front()};
    return AsPairs(*comm.value(), first, [&](PairLeader& leader) {
      for (const Direction direction :
           {Direction::kFromLeader, Direction::kBoth}) {
        GF_RETURN_IF_ERROR(Measure(leader,
                                   {.message_bytes = kLarge,
                                    .direction = direction,
                                    .connections = connections},
                                   &result_.across));
      }
      return Status();
    });
  }

  Communicator& comm_;
  const ProbeOptions options_;
  const Reopen& reopen_;
  const Clock& clock_;
  const HostPairs hosts_;
  Workers workers_;
  ResidualPass residual_;
  const Pass pass_;
  ProbeResult result_;
};

}  // namespace

Result<ProbeResult> Probe(Communicator& comm, const ProbeOptions& options,
                          const Reopen& reopen, const Clock& clock) {
  return Prober(comm, options, reopen, clock).Run();
}

}  // namespace gradientflow
