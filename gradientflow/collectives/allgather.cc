#include <cstddef>
#include <utility>
#include <vector>

#include "gradientflow/collectives/doubling.h"
#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/table.h"

namespace gradientflow {
namespace {

Begins BlocksOf(const CallShape& shape, std::size_t count) {
  return shape.parts.empty() ? BeginsOf(shape.size, count)
                             : BeginsOf(shape.parts);
}

Slice BlockAt(const Begins& begins, int b) {
  const auto i = static_cast<std::size_t>(b);
  return Data(begins[i], begins[i + 1] - begins[i]);
}

// A rank sends its own block from its place in the output, where the send can
// round it to the wire dtype.
Schedule CopyOfOwn(int rank, const Begins& begins) {
  Schedule schedule;
  const Slice mine = BlockAt(begins, rank);
  AppendRound({Copy(Input(0, mine.count), mine)}, &schedule);
  return schedule;
}

// In hop k each rank passes on the block that it received in hop k - 1, so
// after size - 1 hops every rank has every block.
Schedule MakeRing(int rank, const CallShape& shape, std::size_t count) {
  const Begins begins = BlocksOf(shape, count);
  Schedule schedule = CopyOfOwn(rank, begins);
  const Group ring = RingOfHosts(rank, shape.size, shape.topology);
  for (int k = 0; k < shape.size - 1; ++k) {
    Action send = Send(ring.Member(1), BlockAt(begins, ring.Member(-k)));
    send.settle = k == 0;
    AppendRound(
        {send, Recv(ring.Member(-1), BlockAt(begins, ring.Member(-k - 1)))},
        &schedule);
  }
  return schedule;
}

// Source: Thakur et al., IJHPCA 2005.
Price RingPrice(const CallQuestion& question, double bytes) {
  Price price;
  if (question.size() == 1) return price;
  const double crossing = question.hosts.ring();
  price.Add(question.size() - 1, {1, bytes, crossing * bytes, 0},
            question.RingHop(1));
  return price;
}

// Every rank sends its block straight to every other rank, in one round.
Schedule MakeDirect(int rank, const CallShape& shape, std::size_t count) {
  const Begins begins = BlocksOf(shape, count);
  Schedule schedule = CopyOfOwn(rank, begins);
  const Group group = AllRanks(rank, shape.size);
  std::vector<Action> round;
  for (int hop = 1; hop < shape.size; ++hop) {
    const int from = group.Place(-hop);
    round.push_back(Send(group.Place(hop), BlockAt(begins, rank)));
    round.back().settle = hop == 1;
    round.push_back(Recv(from, BlockAt(begins, from)));
  }
  AppendRound(std::move(round), &schedule);
  return schedule;
}

Price DirectPrice(const CallQuestion& question, double bytes) {
  const double others = question.size() - 1;
  Price price;
  if (others == 0) return price;
  const double line = question.hosts.all_pairs() * bytes;
  price.Add(1, {others, others * bytes, line, 0}, question.ToAll(line));
  return price;
}

// In each round a rank gets as many blocks from one peer as it has.
Schedule MakeDoubling(int rank, const CallShape& shape, std::size_t count) {
  const Begins begins = BlocksOf(shape, count);
  Schedule schedule = CopyOfOwn(rank, begins);
  AppendDoublings(rank, shape.size, 0, /*rooted=*/false, begins, &schedule);
  return schedule;
}

Price DoublingPrice(const CallQuestion& question, double bytes) {
  Price price;
  AddDoublings(question, bytes, &price);
  return price;
}

}  // namespace

constinit const CollectiveAlgorithm collectives::kDirectAllgather = {
    .name = "direct",
    .make = &MakeDirect,
    .price = &DirectPrice,
    .all_peers = true,
};
constinit const CollectiveAlgorithm collectives::kRingAllgather = {
    .name = "ring",
    .make = &MakeRing,
    .price = &RingPrice,
};
constinit const CollectiveAlgorithm collectives::kDoublingAllgather = {
    .name = "doubling",
    .make = &MakeDoubling,
    .price = &DoublingPrice,
    .whole = true,
};

}  // namespace gradientflow
