#include "gradientflow/collectives/schedule.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "gradientflow/collectives/group.h"

namespace gradientflow {
namespace {

bool HasWork(const Action& action) {
  switch (action.kind) {
    case Action::Kind::kSync:
      return true;
    case Action::Kind::kSend:
      return action.src.count > 0;
    default:
      return action.dst.count > 0;
  }
}

}  // namespace

Extent BlockOf(std::size_t count, int size, int b) {
  const auto parts = static_cast<std::size_t>(size);
  const auto index = static_cast<std::size_t>(b);
  // count * index / parts, written so that the product cannot overflow.
  const auto begin_of = [&](std::size_t i) {
    return count / parts * i + count % parts * i / parts;
  };
  const std::size_t begin = begin_of(index);
  return {begin, begin_of(index + 1) - begin};
}

Group AllRanks(int rank, int size) {
  Group group{std::vector<int>(static_cast<std::size_t>(size)), rank};
  std::iota(group.members.begin(), group.members.end(), 0);
  return group;
}

Group RingOfHosts(int rank, int size, const Topology& topology) {
  Group group = AllRanks(rank, size);
  if (topology.host.empty()) return group;
  std::map<int, int> lowest;  // The lowest rank of each host.
  for (int r = 0; r < size; ++r) {
    lowest.emplace(topology.host[static_cast<std::size_t>(r)], r);
  }
  const auto host = [&](int r) {
    return lowest.at(topology.host[static_cast<std::size_t>(r)]);
  };
  std::stable_sort(group.members.begin(), group.members.end(),
                   [&](int a, int b) { return host(a) < host(b); });
  group.me = static_cast<int>(
      std::find(group.members.begin(), group.members.end(), rank) -
      group.members.begin());
  return group;
}

std::vector<std::vector<int>> RanksOfHosts(const Topology& topology) {
  std::vector<std::vector<int>> hosts;
  std::map<int, std::size_t> seen;
  for (std::size_t r = 0; r < topology.host.size(); ++r) {
    const auto [at, is_new] = seen.emplace(topology.host[r], hosts.size());
    if (is_new) hosts.emplace_back();
    hosts[at->second].push_back(static_cast<int>(r));
  }
  return hosts;
}

HostPlace PlaceOf(int rank, const std::vector<std::vector<int>>& hosts) {
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    const auto at = std::find(hosts[h].begin(), hosts[h].end(), rank);
    if (at != hosts[h].end()) {
      return {h, static_cast<int>(at - hosts[h].begin())};
    }
  }
  return {};
}

Group ColumnOf(HostPlace place, const std::vector<std::vector<int>>& hosts) {
  const auto local = static_cast<std::size_t>(place.local);
  Group column;
  column.me = static_cast<int>(place.host);
  for (const std::vector<int>& ranks : hosts) {
    if (local >= ranks.size()) return {{}, column.me};
    column.members.push_back(ranks[local]);
  }
  return column;
}

Slice Data(Extent block) { return Data(block.begin, block.count); }
Slice Data(std::size_t begin, std::size_t count) {
  return {Slice::Space::kData, begin, count};
}
Slice Input(std::size_t begin, std::size_t count) {
  return {Slice::Space::kInput, begin, count};
}
Slice Scratch(std::size_t begin, std::size_t count) {
  return {Slice::Space::kScratch, begin, count};
}

Extent SubBlock(Extent range, int size, int b) {
  Extent block = BlockOf(range.count, size, b);
  block.begin += range.begin;
  return block;
}

Action Send(int peer, Slice src) {
  Action action;
  action.kind = Action::Kind::kSend;
  action.peer = peer;
  action.src = src;
  return action;
}

Action SendTo(int peer, Slice src, Slice there) {
  Action action = Send(peer, src);
  action.there = there;
  return action;
}

Action Recv(int peer, Slice dst) {
  Action action;
  action.kind = Action::Kind::kRecv;
  action.peer = peer;
  action.dst = dst;
  return action;
}

Action Copy(Slice src, Slice dst) {
  Action action;
  action.kind = Action::Kind::kCopy;
  action.src = src;
  action.dst = dst;
  return action;
}

Action Sync() {
  Action action;
  action.kind = Action::Kind::kSync;
  return action;
}

Action SumOf(Slice src, Slice dst) {
  Action action;
  action.kind = Action::Kind::kPullReduce;
  action.src = src;
  action.dst = dst;
  action.raw = true;
  action.final = true;
  return action;
}

// Landings are in rank order and leave out this rank.
Slice LandingOf(int place, int own_place, std::size_t count) {
  const int index = place < own_place ? place : place - 1;
  return Scratch(static_cast<std::size_t>(index) * count, count);
}

// Each batch after the first one takes the sum so far as `own`.
void AppendReduceMany(const Landings& landings, Slice dst, bool is_final,
                      std::vector<Action>* round) {
  Action action;
  action.kind = Action::Kind::kReduceMany;
  action.dst = dst;
  action.own = landings.own;
  action.own_place = landings.own_place;
  const bool split = landings.sources + 1 > kMaxReduceParties;
  if (split) action.own_place = 0;
  int first = 0;
  do {
    action.sources = std::min(landings.sources - first, kMaxReduceParties - 1);
    action.src =
        Scratch(static_cast<std::size_t>(first) * dst.count, dst.count);
    first += action.sources;
    // The sum is scaled in the batch with the last contribution and not before,
    // because scaled and unscaled values must not be added.
    const bool last = first == landings.sources;
    action.raw = last;
    action.final = last && is_final;
    round->push_back(action);
    action.own = dst;
    action.partial = true;
  } while (first < landings.sources);
}

void AppendRound(std::vector<Action> actions, Schedule* schedule) {
  std::erase_if(actions, [](const Action& action) { return !HasWork(action); });
  if (!actions.empty()) schedule->rounds.push_back(std::move(actions));
}

void NeedScratch(std::size_t elements, Schedule* schedule) {
  schedule->scratch_elements = std::max(schedule->scratch_elements, elements);
}

}  // namespace gradientflow
