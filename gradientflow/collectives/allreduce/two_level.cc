#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "gradientflow/collectives/allreduce/flat.h"
#include "gradientflow/collectives/allreduce/reuse.h"
#include "gradientflow/collectives/allreduce/table.h"
#include "gradientflow/collectives/cost_model.h"
#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {
namespace {

enum class Across { kNone, kOneRound, kHalvingDoubling, kRing };

// How the ranks run the algorithm. Every rank computes the same plan.
struct TwoLevelPlan {
  std::vector<std::vector<int>> hosts;  // The ranks of each host, ascending.
  int rails = 1;    // Blocks; as many as the smallest host has ranks.
  int largest = 1;  // Number of ranks of the largest host.
  bool one_sided = false;
  Across across = Across::kNone;
};

// A rail's block counts as small up to this size: on any network that needs two
// levels, its latency then outweighs its bytes.
constexpr std::size_t kOneRoundElements = 4096;
constexpr std::size_t kOneRoundHosts = 8;
// If the number of hosts is not a power of two, halving-doubling sends the
// block twice more than a ring does. That is worth it up to this many elements
// for each message that it saves.
constexpr std::size_t kFoldElementsPerMessage = 2048;

Across AcrossFor(const TwoLevelPlan& plan, std::size_t lane_elements,
                 bool any_alone) {
  const auto hosts = plan.hosts.size();
  if (hosts == 1) return Across::kNone;
  // One round is ruled out if some rank is alone on its host. Such a rank
  // brings an unscaled contribution, which kReduceMany cannot mix with scaled
  // ones.
  if (!any_alone && hosts <= kOneRoundHosts &&
      lane_elements <= kOneRoundElements) {
    return Across::kOneRound;
  }
  const std::size_t core = std::bit_floor(hosts);
  if (core == hosts) return Across::kHalvingDoubling;
  const auto steps = static_cast<std::size_t>(std::countr_zero(core));
  const std::size_t saved = 2 * (hosts - 1) - 2 * steps - 2;
  if (lane_elements <= kFoldElementsPerMessage * saved) {
    return Across::kHalvingDoubling;
  }
  return Across::kRing;
}

struct Place {
  std::size_t host = 0;
  int local = 0;  // Index among the ranks of the host.
};

Place PlaceOf(int rank, const TwoLevelPlan& plan) {
  for (std::size_t h = 0; h < plan.hosts.size(); ++h) {
    const auto& ranks = plan.hosts[h];
    const auto at = std::find(ranks.begin(), ranks.end(), rank);
    if (at != ranks.end()) {
      return {h, static_cast<int>(at - ranks.begin())};
    }
  }
  return {};
}

// Every rank of the host sends block l to the host's rank l, which sums it.
void AppendCollect(const Group& host, int rails, std::size_t count,
                   Schedule* schedule) {
  const Extent whole{0, count};
  const bool on_rail = host.me < rails;
  const Slice mine =
      on_rail ? Data(SubBlock(whole, rails, host.me)) : Data(0, 0);
  std::vector<Step> round;
  for (int hop = 1; hop < host.size(); ++hop) {
    const int to = host.Place(hop);
    const int from = host.Place(-hop);
    if (to < rails) {
      round.push_back(Send(host.members[static_cast<std::size_t>(to)],
                           Data(SubBlock(whole, rails, to))));
    }
    if (on_rail) {
      round.push_back(Recv(host.members[static_cast<std::size_t>(from)],
                           LandingOf(from, host.me, mine.count)));
    }
  }
  if (on_rail) {
    NeedScratch(mine.count * static_cast<std::size_t>(host.size() - 1),
                schedule);
    AppendReduceMany({host.size() - 1, host.me, mine}, mine,
                     /*is_final=*/false, &round);
  }
  AppendRound(std::move(round), schedule);
}

// Each rail sends its finished block to all ranks of its host.
void AppendSpread(const Group& host, int rails, std::size_t count, bool settle,
                  Schedule* schedule) {
  std::vector<Step> round;
  for (int hop = 1; hop < host.size(); ++hop) {
    const int to = host.Place(hop);
    const int from = host.Place(-hop);
    if (host.me < rails) {
      round.push_back(Send(host.members[static_cast<std::size_t>(to)],
                           Data(BlockOf(count, rails, host.me))));
      round.back().settle = round.back().last = settle && hop == 1;
      round.back().relay = !round.back().settle;
    }
    if (from < rails) {
      round.push_back(Recv(host.members[static_cast<std::size_t>(from)],
                           Data(BlockOf(count, rails, from))));
    }
  }
  AppendRound(std::move(round), schedule);
}

// `shares` says that the rails store their result in their host's shared memory
// afterwards instead of sending it.
void AppendAcross(const TwoLevelPlan& plan, Place place, bool shares,
                  std::size_t count, Schedule* schedule) {
  Group rail;
  rail.me = static_cast<int>(place.host);
  for (const auto& ranks : plan.hosts) {
    rail.members.push_back(ranks[static_cast<std::size_t>(place.local)]);
  }
  const Extent mine = BlockOf(count, plan.rails, place.local);
  const bool raw = plan.hosts[place.host].size() == 1;
  switch (plan.across) {
    case Across::kNone:
      break;
    case Across::kOneRound:
      AppendOneRound(rail, mine, {.raw = raw, .last = shares}, schedule);
      break;
    case Across::kHalvingDoubling:
      AppendHalvingDoubling(rail, mine, raw, schedule);
      break;
    case Across::kRing:
      AppendRing(rail, mine, raw, schedule);
      break;
  }
}

Step OneSided(Step::Kind kind, Slice dst) {
  Step step;
  step.kind = kind;
  step.dst = dst;
  return step;
}

TwoLevelPlan PlanTwoLevel(const Topology& topology, std::size_t count,
                          bool one_sided) {
  TwoLevelPlan plan;
  std::map<int, std::size_t> seen;
  for (std::size_t r = 0; r < topology.host.size(); ++r) {
    const auto [at, is_new] = seen.emplace(topology.host[r], plan.hosts.size());
    if (is_new) plan.hosts.emplace_back();
    plan.hosts[at->second].push_back(static_cast<int>(r));
  }
  std::size_t smallest = topology.host.size();
  std::size_t largest = 0;
  for (const auto& ranks : plan.hosts) {
    smallest = std::min(smallest, ranks.size());
    largest = std::max(largest, ranks.size());
  }
  plan.rails = static_cast<int>(smallest);
  plan.largest = static_cast<int>(largest);
  plan.one_sided = one_sided && plan.largest <= kMaxReduceParties;
  plan.across = AcrossFor(
      plan, BlockOf(count, plan.rails, plan.rails - 1).count, smallest == 1);
  return plan;
}

// There are three phases. Inside each host, rank l of the host ("rail" l) sums
// block l of all the host's ranks. Across hosts, the ranks of each rail
// allreduce their block. Inside each host again, the rails spread the finished
// blocks. There are as many rails as the smallest host has ranks: all ranks if
// the hosts are equal, a single leader if some rank is alone.
Schedule Make(int rank, const AllreduceShape& shape, std::size_t count) {
  const TwoLevelPlan plan =
      PlanTwoLevel(shape.topology, count, shape.one_sided);
  if (plan.across == Across::kNone) {
    const AllreduceAlgorithm& inside =
        plan.one_sided ? allreduce::kShared : allreduce::kTwoSync;
    return inside.make(rank, shape, count);
  }
  Schedule schedule;
  schedule.multi_hop = true;
  if (count == 0) return schedule;
  const Place place = PlaceOf(rank, plan);
  const Group host{plan.hosts[place.host], place.local};
  const bool on_rail = place.local < plan.rails;
  const bool alone = host.size() == 1;
  const bool shares = plan.one_sided && !alone;
  const Slice mine =
      on_rail ? Data(BlockOf(count, plan.rails, place.local)) : Data(0, 0);

  if (shares) {
    AppendRound({Sync()}, &schedule);
    Step pull = OneSided(Step::Kind::kPullReduce, mine);
    pull.raw = true;
    AppendRound({pull}, &schedule);
  } else if (!alone) {
    AppendCollect(host, plan.rails, count, &schedule);
  }
  if (on_rail) AppendAcross(plan, place, shares, count, &schedule);
  if (shares) {
    AppendRound({OneSided(Step::Kind::kPush, mine)}, &schedule);
    AppendRound({Sync()}, &schedule);
  } else if (!alone) {
    AppendSpread(host, plan.rails, count, plan.across == Across::kOneRound,
                 &schedule);
  }
  return schedule;
}

double PredictAcross(const TwoLevelPlan& plan, double rail_bytes,
                     const LinkModel& across) {
  const int hosts = static_cast<int>(plan.hosts.size());
  LinkModel link = across;
  link.seconds_per_byte *= plan.rails;  // Rails share the host's line.
  switch (plan.across) {
    case Across::kNone:
      return 0;
    case Across::kOneRound:
      return OneRoundSeconds(hosts, rail_bytes, link);
    case Across::kHalvingDoubling:
      return HalvingDoublingSeconds(hosts, rail_bytes, link);
    case Across::kRing:
      return RingSeconds(hosts, rail_bytes, link);
  }
  return 0;
}

double Predict(const AllreduceQuestion& question) {
  const TwoLevelPlan plan = PlanTwoLevel(question.topology, question.count,
                                         question.hosts_share_memory);
  // With a single level another algorithm does the same at a lower cost.
  if (plan.hosts.size() == 1 || plan.largest == 1) {
    return std::numeric_limits<double>::infinity();
  }
  const LinkModel& inside = question.model.inside;
  const double rail_bytes = BytesOf(question) / plan.rails;
  const double g = plan.largest;
  const double across = PredictAcross(plan, rail_bytes, question.model.across);
  if (plan.one_sided) {
    return across + 2 * inside.latency_seconds +
           2 * g * rail_bytes * inside.reduce_seconds_per_byte;
  }
  return across + 2 * inside.latency_seconds +
         2 * (g - 1) *
             (inside.message_seconds + rail_bytes * inside.seconds_per_byte) +
         g * rail_bytes * inside.reduce_seconds_per_byte;
}

}  // namespace

constinit const AllreduceAlgorithm allreduce::kTwoLevel = {
    .name = "two_level",
    .make = &Make,
    .predict = &Predict,
    .memory = AllreduceAlgorithm::Memory::kMayShare,
};

}  // namespace gradientflow
