#include <utility>
#include <vector>

#include "gradientflow/collectives/allreduce/flat.h"
#include "gradientflow/collectives/allreduce/table.h"
#include "gradientflow/collectives/cost_model.h"
#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {
namespace {

// In the first round every rank sends block b straight to rank b, which sums
// the block in rank order. In the second round rank b rounds the sum once and
// sends it to every rank. Rank r starts with rank r + 1, so that no two ranks
// begin with the same peer.
Schedule Make(int rank, const AllreduceShape& shape, std::size_t count) {
  const int size = shape.size;
  Schedule schedule;
  if (size == 1) return schedule;
  const Group group = AllRanks(rank, size);
  const auto block = [&](int b) { return Data(BlockOf(count, size, b)); };
  const Slice mine = block(rank);
  NeedScratch(mine.count * static_cast<std::size_t>(size - 1), &schedule);

  std::vector<Step> collect;
  std::vector<Step> spread;
  for (int hop = 1; hop < size; ++hop) {
    const int to = group.Place(hop);
    const int from = group.Place(-hop);
    collect.push_back(Send(to, block(to)));
    collect.push_back(Recv(from, LandingOf(from, rank, mine.count)));
    spread.push_back(Send(to, mine));
    spread.back().settle = spread.back().last = hop == 1;
    spread.back().relay = hop > 1;
    spread.push_back(Recv(from, block(from)));
  }
  AppendReduceMany({size - 1, rank, mine}, mine, /*is_final=*/true, &collect);
  AppendRound(std::move(collect), &schedule);
  AppendRound(std::move(spread), &schedule);
  return schedule;
}

// Source: arXiv 1802.02326.
double Seconds(int size, double bytes, const LinkModel& link) {
  if (size == 1) return 0;
  const double p = size;
  return 2 * link.latency_seconds + 2 * (p - 1) * link.message_seconds +
         2 * (p - 1) / p * bytes * link.seconds_per_byte +
         bytes * link.reduce_seconds_per_byte;
}

double Predict(const AllreduceQuestion& question) {
  HostLine line(question.topology);
  line.AddAllPairs(2.0 / question.size);
  return FlatSeconds(question, &Seconds, line, question.model.across);
}

}  // namespace

constinit const AllreduceAlgorithm allreduce::kTwoSync = {
    .name = "two_sync",
    .make = &Make,
    .predict = &Predict,
    .receives_early = true,
};

}  // namespace gradientflow
