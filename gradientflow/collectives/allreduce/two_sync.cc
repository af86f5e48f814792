#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "gradientflow/collectives/allreduce/reuse.h"
#include "gradientflow/collectives/allreduce/table.h"
#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {

// In the first round every member sends block b straight to member b, which
// sums the block in their order. In the second round member b rounds the sum
// once and sends it to every member. Each starts with the one after itself, so
// that no two begin with the same peer.
void AppendTwoSync(const Group& group, Extent range, bool raw,
                   Schedule* schedule) {
  const int size = group.size();
  if (size == 1) return;
  const auto block = [&](int b) { return Data(SubBlock(range, size, b)); };
  const Slice mine = block(group.me);
  NeedScratch(mine.count * static_cast<std::size_t>(size - 1), schedule);

  std::vector<Action> collect;
  std::vector<Action> spread;
  for (int hop = 1; hop < size; ++hop) {
    const int to = group.Place(hop);
    const int from = group.Place(-hop);
    collect.push_back(SendTo(group.Member(hop), block(to),
                             LandingOf(group.me, to, block(to).count)));
    collect.push_back(
        Recv(group.Member(-hop), LandingOf(from, group.me, mine.count)));
    spread.push_back(SendTo(group.Member(hop), mine, mine));
    spread.back().settle = spread.back().last = hop == 1;
    spread.back().relay = hop > 1;
    spread.push_back(Recv(group.Member(-hop), block(from)));
  }
  const std::size_t messages = collect.size();
  AppendReduceMany({size - 1, group.me, mine}, mine, /*is_final=*/true,
                   &collect);
  for (std::size_t i = messages; i < collect.size(); ++i) collect[i].raw &= raw;
  AppendRound(std::move(collect), schedule);
  AppendRound(std::move(spread), schedule);
}

Schedule MakeTwoSync(int rank, const CallShape& shape, std::size_t count) {
  Schedule schedule;
  AppendTwoSync(AllRanks(rank, shape.size), {0, count}, /*raw=*/true,
                &schedule);
  return schedule;
}

// If there are fewer elements than ranks, only the owners of an element get
// messages, and then only they send some. A message in one direction is half of
// an exchange, by which the costs are measured.
// Source: arXiv 1802.02326.
Price TwoSyncPrice(const CallQuestion& question, double bytes) {
  const double p = question.size();
  Price price;
  if (p == 1) return price;
  const double met = question.Incast() * bytes;
  const double sent = (p - 1) / p * met;
  const double line = question.hosts.all_pairs() / p * met;
  const double filled = question.Filled(bytes, p);
  const double ways = std::max(0.5, filled);
  const LinkModel link = question.ToAll(line, filled / ways);
  price.Add(1, {ways * (p - 1), sent, line, bytes}, link);
  price.Add(1, {ways * (p - 1), sent, line, 0}, link);
  return price;
}

constinit const CollectiveAlgorithm allreduce::kTwoSync = {
    .name = "two_sync",
    .make = &MakeTwoSync,
    .price = &TwoSyncPrice,
    .receives_early = true,
    .all_peers = true,
    .least_messages = true,
};

}  // namespace gradientflow
