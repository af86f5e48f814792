#include "gradientflow/probe/probe.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>
#include <thread>
#include <type_traits>

#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/communicator/core.h"
#include "gradientflow/communicator/transport.h"

// All ranks go through the same list of measurements. In each, some of them are
// pairs, and the others wait at the barrier after it.
namespace gradientflow {
namespace {

constexpr std::size_t kLarge = std::size_t{2} << 20;
constexpr std::size_t kSizes[] = {std::size_t{32} << 10, std::size_t{256} << 10,
                                  kLarge};
constexpr int kConnections[] = {1, 2, 4};
constexpr int kLoadWindows = 10;
constexpr std::size_t kInCache = std::size_t{256} << 10;
constexpr std::size_t kInMemory = std::size_t{32} << 20;

Status Barrier(Communicator& comm) {
  CollectiveCall call;
  call.kind = CollectiveKind::kBarrier;
  return comm.Run(call);
}

template <typename T>
Status Broadcast(Communicator& comm, int root, T* value) {
  static_assert(std::is_trivially_copyable_v<T>);
  CollectiveCall call;
  call.kind = CollectiveKind::kBroadcast;
  call.output = value;
  call.count = sizeof(T);
  call.dtype = call.wire = DType::kUInt8;
  call.root = root;
  return comm.Run(call);
}

Status Allreduce(Communicator& comm, ReduceOp op, std::vector<double>* values) {
  CollectiveCall call;
  call.output = values->data();
  call.count = values->size();
  call.dtype = call.wire = DType::kFloat64;
  call.op = op;
  return comm.Run(call);
}

// Which ranks are on which host.
class Hosts {
 public:
  explicit Hosts(const CallGroup& group) {
    std::vector<int> names;
    for (int r = 0; r < group.size; ++r) {
      const int host = group.topology.host.empty()
                           ? r
                           : group.topology.host[static_cast<std::size_t>(r)];
      const auto known = std::find(names.begin(), names.end(), host);
      const auto number = static_cast<std::size_t>(known - names.begin());
      if (known == names.end()) {
        names.push_back(host);
        ranks_.emplace_back();
      }
      ranks_[number].push_back(r);
    }
  }
  const std::vector<std::vector<int>>& ranks() const { return ranks_; }
  int most() const {
    std::size_t most = 0;
    for (const auto& host : ranks_) most = std::max(most, host.size());
    return static_cast<int>(most);
  }
  struct Pair {
    int leader = 0;
    int follower = 0;
  };
  std::optional<Pair> Inside() const {
    for (const auto& host : ranks_) {
      if (host.size() > 1) return Pair{host[0], host[1]};
    }
    return std::nullopt;
  }
  std::optional<Pair> Across() const {
    if (ranks_.size() < 2) return std::nullopt;
    return Pair{ranks_[0][0], ranks_[1][0]};
  }
  // One pair for each rank that has a counterpart on the second host.
  std::vector<Pair> Line() const {
    std::vector<Pair> pairs;
    if (ranks_.size() < 2) return pairs;
    const std::size_t count = std::min(ranks_[0].size(), ranks_[1].size());
    for (std::size_t i = 0; i < count; ++i) {
      pairs.push_back({ranks_[0][i], ranks_[1][i]});
    }
    return pairs;
  }

 private:
  std::vector<std::vector<int>> ranks_;
};

class Prober {
 public:
  Prober(Communicator& comm, const ProbeOptions& options, const Reopen& reopen,
         const Clock& clock)
      : comm_(comm),
        options_(options),
        reopen_(reopen),
        clock_(clock),
        hosts_(comm.core().group()) {}

  Result<ProbeResult> Run() {
    result_.ranks = comm_.size();
    result_.hosts = static_cast<int>(hosts_.ranks().size());
    result_.ranks_per_host = hosts_.most();
    result_.cores_per_host =
        static_cast<int>(std::max(std::thread::hardware_concurrency(), 1U));
    result_.load_threads = options_.load_threads < 0 ? 0 : LoadThreads();
    GF_RETURN_IF_ERROR(Memory());
    GF_RETURN_IF_ERROR(OfClass(hosts_.Inside(), &result_.inside));
    GF_RETURN_IF_ERROR(OfClass(hosts_.Across(), &result_.across));
    GF_RETURN_IF_ERROR(Line(&result_.line));
    if (options_.load_threads >= 0) {
      const ComputeLoad load(LoadThreads());
      GF_RETURN_IF_ERROR(Line(&result_.line_under_load));
    }
    if (hosts_.Across() && reopen_) {
      for (const int connections : kConnections) {
        if (connections == ConnectionsOf(result_.across)) continue;
        GF_RETURN_IF_ERROR(Connections(connections));
      }
      GF_RETURN_IF_ERROR(
          Broadcast(comm_, hosts_.Across()->leader, &result_.across));
    }
    return result_;
  }

 private:
  Status Memory() {
    GF_RETURN_IF_ERROR(Barrier(comm_));
    const double seconds = options_.seconds / 2;
    const MemoryRates rates[] = {MeasureReduce(kInMemory, seconds, clock_),
                                 MeasureReduce(kInCache, seconds, clock_),
                                 MeasureResidual(kInMemory, seconds, clock_)};
    std::vector<double> slowest;
    for (const MemoryRates& rate : rates) {
      slowest.insert(slowest.end(), {rate.p50, rate.p99});
    }
    GF_RETURN_IF_ERROR(Allreduce(comm_, ReduceOp::kMin, &slowest));
    result_.reduce = {slowest[0], slowest[1]};
    result_.reduce_in_cache = {slowest[2], slowest[3]};
    result_.residual = {slowest[4], slowest[5]};
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

  Status OfClass(const std::optional<Hosts::Pair>& pair, PairResult* result) {
    if (!pair) return Status();
    result->measured = true;
    result->leader = pair->leader;
    result->follower = pair->follower;
    const std::string_view transport = TransportOf(result == &result_.inside);
    std::copy(transport.begin(), transport.end(), result->transport.begin());
    GF_RETURN_IF_ERROR(AsPair(comm_, *pair, [&](PairLeader& leader) {
      return AtRest(leader, result);
    }));
    if (options_.load_threads >= 0) {
      // Backward runs on all ranks at the same time.
      ComputeLoad load(LoadThreads());
      GF_RETURN_IF_ERROR(AsPair(comm_, *pair, [&](PairLeader& leader) {
        return UnderLoad(leader, load, result);
      }));
    }
    return Broadcast(comm_, pair->leader, result);
  }

  // Runs `lead` on the leader. Returns when the pair is done.
  template <typename Lead>
  Status AsPair(Communicator& comm, const Hosts::Pair& pair, const Lead& lead) {
    GF_RETURN_IF_ERROR(Barrier(comm));
    if (comm.rank() == pair.leader) {
      PairLeader leader(comm, pair.follower, clock_);
      GF_RETURN_IF_ERROR(lead(leader));
      GF_RETURN_IF_ERROR(leader.End());
    } else if (comm.rank() == pair.follower) {
      GF_RETURN_IF_ERROR(FollowPair(comm, pair.leader, clock_));
    }
    return Barrier(comm);
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
    GF_RETURN_IF_ERROR(
        Assign(leader.Latency(options_.seconds), &result->latency));
    GF_RETURN_IF_ERROR(
        Assign(leader.OwnWork(options_.seconds), &result->own_work));
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
        Assign(leader.Latency(options_.seconds), &result->latency_under_load));
    GF_RETURN_IF_ERROR(
        Assign(leader.OwnWork(options_.seconds), &result->own_work_under_load));
    GF_RETURN_IF_ERROR(
        Assign(Longer(leader, load), &result->backward_seconds_per_message));
    result->reduce_under_load =
        MeasureReduce(kInCache, options_.seconds / 4, clock_);
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
    return MessageTimes{std::max(ShareBelow(each, 0.5), 0.0),
                        std::max(ShareBelow(each, 0.99), 0.0)};
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

  Status Line(LineResult* result) {
    const auto pairs = static_cast<int>(hosts_.Line().size());
    if (pairs < 2) return Status();
    result_.line_ranks = pairs;
    result_.line_message_bytes = kLarge;
    for (const Direction direction :
         {Direction::kFromLeader, Direction::kBoth}) {
      double rate = 0;
      for (const Hosts::Pair& pair : hosts_.Line()) {
        if (comm_.rank() != pair.leader && comm_.rank() != pair.follower) {
          continue;
        }
        GF_RETURN_IF_ERROR(Barrier(comm_));
        if (comm_.rank() == pair.follower) {
          GF_RETURN_IF_ERROR(FollowPair(comm_, pair.leader, clock_));
          continue;
        }
        PairLeader leader(comm_, pair.follower, clock_);
        const Result<FlowRate> measured =
            leader.Rate({.message_bytes = kLarge,
                         .direction = direction,
                         .seconds = 2 * options_.seconds});
        if (!measured.ok()) return measured.status();
        rate = measured.value().mean;
        GF_RETURN_IF_ERROR(leader.End());
      }
      if (!InLine()) GF_RETURN_IF_ERROR(Barrier(comm_));
      std::vector<double> sum = {rate};
      GF_RETURN_IF_ERROR(Allreduce(comm_, ReduceOp::kSum, &sum));
      (direction == Direction::kBoth ? result->both_ways : result->one_way) =
          sum[0];
    }
    return Status();
  }

  bool InLine() const {
    const auto pairs = hosts_.Line();
    return std::any_of(pairs.begin(), pairs.end(), [&](const auto& pair) {
      return comm_.rank() == pair.leader || comm_.rank() == pair.follower;
    });
  }

  Status Connections(int connections) {
    const auto comm = reopen_(connections);
    if (!comm.ok()) return comm.status();
    return AsPair(*comm.value(), *hosts_.Across(), [&](PairLeader& leader) {
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
  const Hosts hosts_;
  ProbeResult result_;
};

}  // namespace

Result<ProbeResult> Probe(Communicator& comm, const ProbeOptions& options,
                          const Reopen& reopen, const Clock& clock) {
  return Prober(comm, options, reopen, clock).Run();
}

}  // namespace gradientflow
