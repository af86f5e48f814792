#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "gradientflow/collectives/allreduce/reuse.h"
#include "gradientflow/collectives/allreduce/table.h"
#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {
namespace {

// How the ranks run the algorithm. Every rank computes the same plan.
struct TwoLevelPlan {
  std::vector<std::vector<int>> hosts;  // See RanksOfHosts().
  int columns = 1;  // Blocks; as many as the smallest host has ranks.
  int largest = 1;  // Number of ranks of the largest host.
  bool one_sided = false;
  const CollectiveAlgorithm* across = nullptr;  // Null for a single host.
};

// What the columns do between hosts costs them.
struct AcrossPrice {
  const CollectiveAlgorithm* algorithm = nullptr;
  Price price = ImpossiblePrice();
};

// One column's part between hosts.
struct Column {
  double bytes = 0;  // Of its block.
  std::size_t element_bytes = 4;
  std::size_t placed_bytes = 0;  // What of it may be placed.
  // The same on all ranks, for all of them: see CallQuestion.
  CostModel together;
  CostModel alone;
};

// If some rank is alone on its host it brings an unscaled contribution, which
// kReduceMany cannot mix with the scaled ones of one round.
bool CanRun(const CollectiveAlgorithm* algorithm, const HostMap& map,
            const Column& column) {
  const bool sums_at_once =
      algorithm == &allreduce::kOneRound || algorithm == &allreduce::kGdraa;
  if (sums_at_once && map.smallest() == 1) return false;
  if (algorithm == &allreduce::kGdraa &&
      (column.placed_bytes == 0 ||
       column.bytes > static_cast<double>(column.placed_bytes))) {
    return false;
  }
  return map.hosts() <= algorithm->max_ranks;
}

// The algorithm with the least price for a block on each of the columns, which
// share their hosts' lines. While they work, the other ranks wait.
AcrossPrice CheapestAcross(const HostMap& map, const Column& column) {
  const int hosts = map.hosts();
  const int columns = map.smallest();
  const double working = static_cast<double>(columns * hosts) / map.size();
  CallQuestion question;
  question.hosts = HostMap(hosts);
  question.wire_element_bytes = column.element_bytes;
  LinkModel one = column.alone.across;
  LinkModel all = UnderLoad(one, column.together.across, working);
  one.seconds_per_byte *= columns;
  all.seconds_per_byte *= columns;
  question.model = {all, all};
  question.alone = CostModel{one, one};
  question.all_place = column.placed_bytes > 0;
  AcrossPrice best;
  for (const CollectiveAlgorithm* algorithm :
       {&allreduce::kGdraa, &allreduce::kHalvingDoubling, &allreduce::kRing,
        &allreduce::kOneRound}) {
    if (!CanRun(algorithm, map, column)) continue;
    const Price price = algorithm->price(question, column.bytes);
    if (price.elapsed < best.price.elapsed * (1 - 1e-9) ||
        best.algorithm == nullptr) {
      best = {algorithm, price};
    }
  }
  return best;
}

// Every rank of the host sends block l to the host's rank l, which sums it.
void AppendCollect(const Group& host, int columns, std::size_t count,
                   Schedule* schedule) {
  const Extent whole{0, count};
  const bool in_column = host.me < columns;
  const Slice mine =
      in_column ? Data(SubBlock(whole, columns, host.me)) : Data(0, 0);
  std::vector<Action> round;
  for (int hop = 1; hop < host.size(); ++hop) {
    const int to = host.Place(hop);
    const int from = host.Place(-hop);
    if (to < columns) {
      round.push_back(Send(host.members[static_cast<std::size_t>(to)],
                           Data(SubBlock(whole, columns, to))));
    }
    if (in_column) {
      round.push_back(Recv(host.members[static_cast<std::size_t>(from)],
                           LandingOf(from, host.me, mine.count)));
    }
  }
  if (in_column) {
    NeedScratch(mine.count * static_cast<std::size_t>(host.size() - 1),
                schedule);
    AppendReduceMany({host.size() - 1, host.me, mine}, mine,
                     /*is_final=*/false, &round);
  }
  AppendRound(std::move(round), schedule);
}

// Each column sends its finished block to all ranks of its host.
void AppendSpread(const Group& host, int columns, std::size_t count,
                  bool settle, Schedule* schedule) {
  std::vector<Action> round;
  for (int hop = 1; hop < host.size(); ++hop) {
    const int to = host.Place(hop);
    const int from = host.Place(-hop);
    if (host.me < columns) {
      round.push_back(Send(host.members[static_cast<std::size_t>(to)],
                           Data(BlockOf(count, columns, host.me))));
      round.back().settle = round.back().last = settle && hop == 1;
      round.back().relay = !round.back().settle;
    }
    if (from < columns) {
      round.push_back(Recv(host.members[static_cast<std::size_t>(from)],
                           Data(BlockOf(count, columns, from))));
    }
  }
  AppendRound(std::move(round), schedule);
}

// `shares` says that the columns store their result in their host's shared
// memory afterwards instead of sending it.
void AppendAcross(const TwoLevelPlan& plan, HostPlace place, bool shares,
                  std::size_t count, Schedule* schedule) {
  const Group column = ColumnOf(place, plan.hosts);
  const Extent mine = BlockOf(count, plan.columns, place.local);
  const bool raw = plan.hosts[place.host].size() == 1;
  if (plan.across == &allreduce::kGdraa) {
    AppendTwoSync(column, mine, raw, schedule);
    // Without elements there are no messages.
    schedule->placing = mine.count > 0 ? column.size() : 0;
    schedule->placed_from = mine.begin;
  } else if (plan.across == &allreduce::kOneRound) {
    AppendOneRound(column, mine, {.raw = raw, .last = shares}, schedule);
  } else if (plan.across == &allreduce::kRing) {
    AppendRing(column, mine, raw, schedule);
  } else {
    AppendHalvingDoubling(column, mine, raw, schedule);
  }
}

Action OneSided(Action::Kind kind, Slice dst) {
  Action action;
  action.kind = kind;
  action.dst = dst;
  return action;
}

TwoLevelPlan PlanTwoLevel(const CallShape& shape, std::size_t count) {
  const Topology& topology = shape.topology;
  TwoLevelPlan plan;
  plan.hosts = RanksOfHosts(topology);
  std::size_t smallest = topology.host.size();
  std::size_t largest = 0;
  for (const auto& ranks : plan.hosts) {
    smallest = std::min(smallest, ranks.size());
    largest = std::max(largest, ranks.size());
  }
  plan.columns = static_cast<int>(smallest);
  plan.largest = static_cast<int>(largest);
  plan.one_sided = shape.one_sided && plan.largest <= kMaxReduceParties;
  if (plan.hosts.size() > 1) {
    const std::size_t block =
        BlockOf(count, plan.columns, plan.columns - 1).count;
    const auto bytes = static_cast<double>(block * shape.wire_element_bytes);
    plan.across = CheapestAcross(HostMap(shape.size, topology),
                                 {bytes, shape.wire_element_bytes,
                                  plan.one_sided ? shape.placed_bytes : 0,
                                  shape.costs.together, shape.costs.alone})
                      .algorithm;
  }
  return plan;
}

// There are three phases. Inside each host, rank l of the host ("column" l)
// sums block l of all the host's ranks. Across hosts, the ranks of each column
// allreduce their block. Inside each host again, the columns spread the
// finished blocks. There are as many columns as the smallest host has ranks:
// all ranks if the hosts are equal, a single leader if some rank is alone.
Schedule Make(int rank, const CallShape& shape, std::size_t count) {
  const TwoLevelPlan plan = PlanTwoLevel(shape, count);
  if (plan.across == nullptr) {
    const CollectiveAlgorithm& inside =
        plan.one_sided ? allreduce::kShared : allreduce::kTwoSync;
    return inside.make(rank, shape, count);
  }
  Schedule schedule;
  schedule.multi_hop = true;
  if (count == 0) return schedule;
  const HostPlace place = PlaceOf(rank, plan.hosts);
  const Group host{plan.hosts[place.host], place.local};
  const bool in_column = place.local < plan.columns;
  const bool alone = host.size() == 1;
  const bool shares = plan.one_sided && !alone;
  const Slice mine =
      in_column ? Data(BlockOf(count, plan.columns, place.local)) : Data(0, 0);

  if (shares) {
    AppendRound({Sync()}, &schedule);
    Action pull = OneSided(Action::Kind::kPullReduce, mine);
    pull.raw = true;
    AppendRound({pull}, &schedule);
  } else if (!alone) {
    AppendCollect(host, plan.columns, count, &schedule);
  }
  if (in_column) AppendAcross(plan, place, shares, count, &schedule);
  if (shares) {
    AppendRound({OneSided(Action::Kind::kPush, mine)}, &schedule);
    AppendRound({Sync()}, &schedule);
  } else if (!alone) {
    AppendSpread(host, plan.columns, count,
                 plan.across == &allreduce::kOneRound, &schedule);
  }
  return schedule;
}

Price PriceOf(const CallQuestion& question, double bytes) {
  const HostMap& hosts = question.hosts;
  // With a single level another algorithm does the same at a lower cost.
  if (hosts.hosts() == 1 || hosts.largest() == 1) return ImpossiblePrice();
  const LinkModel& inside = question.model.inside;
  const double block = bytes / hosts.smallest();
  const double g = hosts.largest();
  const bool one_sided =
      question.hosts_share_memory && hosts.largest() <= kMaxReduceParties;
  Price price = CheapestAcross(hosts, {block, question.wire_element_bytes,
                                       one_sided ? question.placed_bytes : 0,
                                       question.model,
                                       question.alone.value_or(question.model)})
                    .price;
  if (one_sided) {
    price.AddSyncs(2, 2 * g * block, inside);
    return price;
  }
  price.Add(1, {g - 1, (g - 1) * block, 0, g * block}, inside);
  price.Add(1, {g - 1, (g - 1) * block, 0, 0}, inside);
  return price;
}

}  // namespace

constinit const CollectiveAlgorithm allreduce::kTwoLevel = {
    .name = "two_level",
    .make = &Make,
    .price = &PriceOf,
    .memory = CollectiveAlgorithm::Memory::kMayShare,
};

}  // namespace gradientflow
