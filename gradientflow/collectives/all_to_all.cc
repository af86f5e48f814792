#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "gradientflow/collectives/doubling.h"
#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/table.h"

namespace gradientflow {
namespace {

// A rank exchanges with this many peers at a time: enough to hide the latency
// of one behind the others, few enough that no receiver is flooded.
constexpr int kPeersPerRound = 4;

// Hops with nothing to send or receive take no part in the count of peers. A
// hop never waits for a later one, so ranks may divide their hops differently.
Schedule MakePairwise(int rank, const CallShape& shape, std::size_t) {
  Schedule schedule;
  const int size = shape.size;
  const Group group = AllRanks(rank, size);
  const Begins send_begins = BeginsOf(shape.parts);
  const Begins recv_begins = BeginsOf(shape.recv_parts);
  const auto out = [&](int r) {
    const auto i = static_cast<std::size_t>(r);
    return Input(send_begins[i], shape.parts[i]);
  };
  const auto in = [&](int r) {
    const auto i = static_cast<std::size_t>(r);
    return Data(recv_begins[i], shape.recv_parts[i]);
  };
  // In hop h every rank sends to the rank h places after it and receives from
  // the rank h places before it, so no two ranks send to the same peer in one
  // hop.
  std::vector<Action> round{Copy(out(rank), in(rank))};
  int peers = 0;
  for (int hop = 1; hop < size; ++hop) {
    const Action send = Send(group.Place(hop), out(group.Place(hop)));
    const Action recv = Recv(group.Place(-hop), in(group.Place(-hop)));
    if (send.src.count + recv.dst.count == 0) continue;
    round.push_back(send);
    round.push_back(recv);
    if (++peers % kPeersPerRound > 0) continue;
    AppendRound(std::exchange(round, {}), &schedule);
  }
  AppendRound(std::move(round), &schedule);
  return schedule;
}

Price PairwisePrice(const CallQuestion& question, double bytes) {
  const double others = question.size() - 1;
  Price price;
  if (others == 0) return price;
  const double rounds = std::max(1.0, others / kPeersPerRound);
  const double line = question.hosts.all_pairs() * bytes / rounds;
  price.Add(rounds, {others / rounds, others / rounds * bytes, line, 0},
            question.ToAll(line));
  return price;
}

// Block i of the work area is for the rank i places after this one. In round k
// the blocks whose i has bit k go 2^k places on, packed into one message. In
// the end block i has come from the rank i places before. The scratch memory
// holds the work area, then what is sent, then what is received.
Schedule MakeBruck(int rank, const CallShape& shape, std::size_t) {
  Schedule schedule;
  const int size = shape.size;
  const Group group = AllRanks(rank, size);
  const std::size_t count = shape.parts[static_cast<std::size_t>(rank)];
  if (count == 0) return schedule;
  const auto at = [&](int block) {
    return static_cast<std::size_t>(block) * count;
  };
  const int most = (size + 1) / 2;  // Blocks of a message.
  NeedScratch(at(size + 2 * most), &schedule);
  std::vector<Action> round;
  for (int i = 0; i < size; ++i) {
    round.push_back(
        Copy(Input(at(group.Place(i)), count), Scratch(at(i), count)));
  }
  for (int hop = 1; hop < size; hop *= 2) {
    std::vector<Action> unpack;
    int blocks = 0;
    for (int i = hop; i < size; ++i) {
      if ((i & hop) == 0) continue;
      const Slice work = Scratch(at(i), count);
      round.push_back(Copy(work, Scratch(at(size + blocks), count)));
      unpack.push_back(Copy(Scratch(at(size + most + blocks), count), work));
      ++blocks;
    }
    AppendRound(std::exchange(round, {}), &schedule);
    round.push_back(Send(group.Place(hop), Scratch(at(size), at(blocks))));
    round.push_back(
        Recv(group.Place(-hop), Scratch(at(size + most), at(blocks))));
    round.insert(round.end(), unpack.begin(), unpack.end());
  }
  for (int i = 0; i < size; ++i) {
    round.push_back(
        Copy(Scratch(at(i), count), Data(at(group.Place(-i)), count)));
  }
  AppendRound(std::move(round), &schedule);
  return schedule;
}

// Source: Bruck et al., IEEE TPDS 1997.
Price BruckPrice(const CallQuestion& question, double bytes) {
  const HostMap& hosts = question.hosts;
  Price price;
  const int blocks = (hosts.size() + 1) / 2;
  const double sent = blocks * bytes;
  for (int k = 0; k < hosts.doublings(); ++k) {
    const double line = hosts.Shift(k) * sent;
    price.Add(1, {1, sent, line, 2 * sent}, question.Hop(hosts.Shift(k)));
  }
  return price;
}

}  // namespace

constinit const CollectiveAlgorithm collectives::kPairwiseAllToAll = {
    .name = "pairwise",
    .make = &MakePairwise,
    .price = &PairwisePrice,
    .all_peers = true,
};
constinit const CollectiveAlgorithm collectives::kBruckAllToAll = {
    .name = "bruck",
    .make = &MakeBruck,
    .price = &BruckPrice,
    .whole = true,
    .equal_counts = true,
};

}  // namespace gradientflow
