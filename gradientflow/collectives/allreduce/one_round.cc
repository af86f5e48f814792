#include <cstddef>
#include <utility>
#include <vector>

#include "gradientflow/collectives/allreduce/reuse.h"
#include "gradientflow/collectives/allreduce/table.h"
#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {

// Every member sends its whole contribution to every other member, and all of
// them add the same numbers in the same order. A member rounds its own
// contribution to the wire dtype first, since that is the value the others see.
void AppendOneRound(const Group& group, Extent range, OneRound how,
                    Schedule* schedule) {
  const int size = group.size();
  if (size == 1) return;
  const Slice all = Data(range);
  NeedScratch(range.count * static_cast<std::size_t>(size - 1), schedule);
  std::vector<Action> round;
  for (int hop = 1; hop < size; ++hop) {
    const int to = group.Place(hop);
    const int from = group.Place(-hop);
    round.push_back(Send(group.members[static_cast<std::size_t>(to)], all));
    round.back().settle = hop == 1;
    round.push_back(Recv(group.members[static_cast<std::size_t>(from)],
                         LandingOf(from, group.me, range.count)));
  }
  AppendReduceMany({size - 1, group.me, all}, all, /*is_final=*/true, &round);
  round.back().raw = how.raw;
  round.back().last = how.last;
  AppendRound(std::move(round), schedule);
}

Price OneRoundPrice(const CallQuestion& question, double bytes) {
  const double p = question.size();
  Price price;
  if (p == 1) return price;
  const double met = question.Incast() * bytes;
  const double line = question.hosts.all_pairs() * met;
  price.Add(1, {p - 1, (p - 1) * met, line, p * bytes}, question.ToAll(line));
  return price;
}

namespace {

Schedule Make(int rank, const CallShape& shape, std::size_t count) {
  Schedule schedule;
  AppendOneRound(AllRanks(rank, shape.size), {0, count},
                 {.raw = true, .last = true}, &schedule);
  return schedule;
}

}  // namespace

// With more ranks than one reduction takes, each rank would sum in batches that
// begin with its own contribution, so the order would differ between ranks.
constinit const CollectiveAlgorithm allreduce::kOneRound = {
    .name = "one_round",
    .make = &Make,
    .price = &OneRoundPrice,
    .max_ranks = kMaxReduceParties,
    .stand_in = &allreduce::kTwoSync,
    .all_peers = true,
    .lands_all = true,
};

}  // namespace gradientflow
