#include "gradientflow/collectives/allreduce/flat.h"
#include "gradientflow/collectives/allreduce/reuse.h"
#include "gradientflow/collectives/allreduce/table.h"
#include "gradientflow/collectives/cost_model.h"
#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {

// The buffer is cut into `size` blocks. In round k member m sends block m - k
// to its right neighbour and adds the block m - k - 1 that comes from its left
// neighbour. After size - 1 rounds it holds the sum of block m + 1 and rounds
// it to the wire dtype as it sends it; another size - 1 rounds pass the
// finished blocks around.
void AppendRing(const Group& group, Extent range, bool raw,
                Schedule* schedule) {
  const int size = group.size();
  if (size == 1) return;
  const auto member = [&](int place) {
    return group.members[static_cast<std::size_t>(place)];
  };
  const int right = member(group.Place(1));
  const int left = member(group.Place(-1));
  const auto block = [&](int hops) {
    return Data(SubBlock(range, size, group.Place(hops)));
  };
  const auto parts = static_cast<std::size_t>(size);
  NeedScratch((range.count + parts - 1) / parts, schedule);

  for (int k = 0; k < size - 1; ++k) {
    const Slice in = block(-k - 1);
    Step send = Send(right, block(-k));
    send.raw = raw && k == 0;
    Step reduce;
    reduce.kind = Step::Kind::kReduce;
    reduce.src = Scratch(0, in.count);
    reduce.dst = in;
    reduce.raw = raw;
    reduce.final = k == size - 2;
    AppendRound({send, Recv(left, reduce.src), reduce}, schedule);
  }
  for (int k = 0; k < size - 1; ++k) {
    Step send = Send(right, block(1 - k));
    send.settle = send.last = k == 0;
    send.relay = k > 0;
    AppendRound({send, Recv(left, block(-k))}, schedule);
  }
}

// Source: Patarasuk & Yuan, JPDC 2009.
double RingSeconds(int size, double bytes, const LinkModel& link) {
  const double p = size;
  return MessageSeconds(2 * (p - 1), link) +
         (p - 1) / p * bytes *
             (2 * link.seconds_per_byte + link.reduce_seconds_per_byte);
}

namespace {

Schedule Make(int rank, const AllreduceShape& shape, std::size_t count) {
  Schedule schedule;
  schedule.multi_hop = true;
  AppendRing(AllRanks(rank, shape.size), {0, count}, /*raw=*/true, &schedule);
  return schedule;
}

// The average cost of a hop. A block passes over every hop of the ring, so a
// ring with few hops between hosts pays their latency only that often.
LinkModel AverageHop(const AllreduceQuestion& question) {
  const LinkModel& inside = question.model.inside;
  LinkModel hop = question.model.across;
  const auto& host = question.topology.host;
  double crossing = 0;
  for (std::size_t r = 0; r < host.size(); ++r) {
    crossing += host[r] != host[(r + 1) % host.size()] ? 1 : 0;
  }
  const double share = crossing / static_cast<double>(host.size());
  hop.latency_seconds =
      share * hop.latency_seconds + (1 - share) * inside.latency_seconds;
  hop.message_seconds =
      share * hop.message_seconds + (1 - share) * inside.message_seconds;
  return hop;
}

double Predict(const AllreduceQuestion& question) {
  const int size = question.size;
  HostLine line(question.topology);
  for (int r = 0; r < size; ++r) {
    line.Add(r, (r + 1) % size, 2.0 * (size - 1) / size);
  }
  return FlatSeconds(question, &RingSeconds, line, AverageHop(question));
}

}  // namespace

constinit const AllreduceAlgorithm allreduce::kRing = {
    .name = "ring",
    .make = &Make,
    .predict = &Predict,
    .receives_early = true,
};

}  // namespace gradientflow
