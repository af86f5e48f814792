#include <utility>
#include <vector>

#include "gradientflow/collectives/allreduce/flat.h"
#include "gradientflow/collectives/allreduce/reuse.h"
#include "gradientflow/collectives/allreduce/table.h"
#include "gradientflow/collectives/cost_model.h"
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
  std::vector<Step> round;
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

double OneRoundSeconds(int size, double bytes, const LinkModel& link) {
  if (size == 1) return 0;
  const double p = size;
  return link.latency_seconds + (p - 1) * link.message_seconds +
         (p - 1) * bytes * link.seconds_per_byte +
         p * bytes * link.reduce_seconds_per_byte;
}

namespace {

Schedule Make(int rank, const AllreduceShape& shape, std::size_t count) {
  Schedule schedule;
  AppendOneRound(AllRanks(rank, shape.size), {0, count},
                 {.raw = true, .last = true}, &schedule);
  return schedule;
}

double Predict(const AllreduceQuestion& question) {
  HostLine line(question.topology);
  line.AddAllPairs(1);
  return FlatSeconds(question, &OneRoundSeconds, line, question.model.across);
}

}  // namespace

// With more ranks than one reduction takes, each rank would sum in batches that
// begin with its own contribution, so the order would differ between ranks.
constinit const AllreduceAlgorithm allreduce::kOneRound = {
    .name = "one_round",
    .make = &Make,
    .predict = &Predict,
    .max_ranks = kMaxReduceParties,
    .stand_in = &allreduce::kTwoSync,
};

}  // namespace gradientflow
