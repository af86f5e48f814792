#include "gradientflow/collectives/schedule.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "gradientflow/collectives/group.h"

namespace gradientflow {
namespace {

bool HasWork(const Step& step) {
  switch (step.kind) {
    case Step::Kind::kSync:
      return true;
    case Step::Kind::kSend:
      return step.src.count > 0;
    default:
      return step.dst.count > 0;
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

Step Send(int peer, Slice src) {
  Step step;
  step.kind = Step::Kind::kSend;
  step.peer = peer;
  step.src = src;
  return step;
}

Step SendTo(int peer, Slice src, Slice there) {
  Step step = Send(peer, src);
  step.there = there;
  return step;
}

Step Recv(int peer, Slice dst) {
  Step step;
  step.kind = Step::Kind::kRecv;
  step.peer = peer;
  step.dst = dst;
  return step;
}

Step Copy(Slice src, Slice dst) {
  Step step;
  step.kind = Step::Kind::kCopy;
  step.src = src;
  step.dst = dst;
  return step;
}

Step Sync() {
  Step step;
  step.kind = Step::Kind::kSync;
  return step;
}

Step SumOf(Slice src, Slice dst) {
  Step step;
  step.kind = Step::Kind::kPullReduce;
  step.src = src;
  step.dst = dst;
  step.raw = true;
  step.final = true;
  return step;
}

// Landings are in rank order and leave out this rank.
Slice LandingOf(int place, int own_place, std::size_t count) {
  const int index = place < own_place ? place : place - 1;
  return Scratch(static_cast<std::size_t>(index) * count, count);
}

// Each batch after the first one takes the sum so far as `own`.
void AppendReduceMany(const Landings& landings, Slice dst, bool is_final,
                      std::vector<Step>* round) {
  Step step;
  step.kind = Step::Kind::kReduceMany;
  step.dst = dst;
  step.own = landings.own;
  step.own_place = landings.own_place;
  const bool split = landings.sources + 1 > kMaxReduceParties;
  if (split) step.own_place = 0;
  int first = 0;
  do {
    step.sources = std::min(landings.sources - first, kMaxReduceParties - 1);
    step.src = Scratch(static_cast<std::size_t>(first) * dst.count, dst.count);
    first += step.sources;
    // The sum is scaled in the batch with the last contribution and not before,
    // because scaled and unscaled values must not be added.
    const bool last = first == landings.sources;
    step.raw = last;
    step.final = last && is_final;
    round->push_back(step);
    step.own = dst;
    step.partial = true;
  } while (first < landings.sources);
}

void AppendRound(std::vector<Step> steps, Schedule* schedule) {
  std::erase_if(steps, [](const Step& step) { return !HasWork(step); });
  if (!steps.empty()) schedule->rounds.push_back(std::move(steps));
}

void NeedScratch(std::size_t elements, Schedule* schedule) {
  schedule->scratch_elements = std::max(schedule->scratch_elements, elements);
}

}  // namespace gradientflow
