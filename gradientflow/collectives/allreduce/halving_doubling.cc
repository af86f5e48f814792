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

Action ReduceLanding(Slice dst, bool raw, bool is_final) {
  Action action;
  action.kind = Action::Kind::kReduce;
  action.src = Scratch(0, dst.count);
  action.dst = dst;
  action.raw = raw;
  action.final = is_final;
  return action;
}

// Splits `owned` into the half that this rank keeps and the half it gives away.
std::pair<Extent, Extent> Halve(Extent owned, bool low) {
  const Extent lower{owned.begin, owned.count / 2};
  const Extent upper{owned.begin + lower.count, owned.count - lower.count};
  return low ? std::pair{lower, upper} : std::pair{upper, lower};
}

// Recursive halving (reduce-scatter) among the first `core` members, then
// recursive doubling (allgather).
void AppendExchange(const Group& group, int core, Extent range, bool raw,
                    Schedule* schedule) {
  const auto partner = [&](int bit) {
    return group.members[static_cast<std::size_t>(group.me ^ bit)];
  };
  // For each bit, the half that the partner took over.
  std::vector<Extent> given;
  Extent owned = range;
  for (int bit = 1; bit < core; bit *= 2) {
    const auto [keep, give] = Halve(owned, (group.me & bit) == 0);
    Action send = Send(partner(bit), Data(give));
    send.raw = raw && bit == 1;
    const Action reduce =
        ReduceLanding(Data(keep), raw && bit == 1, bit * 2 == core);
    NeedScratch(keep.count, schedule);
    AppendRound({send, Recv(partner(bit), reduce.src), reduce}, schedule);
    given.push_back(give);
    owned = keep;
  }
  for (int bit = core / 2; bit >= 1; bit /= 2) {
    Action send = Send(partner(bit), Data(owned));
    // The owner rounds its result once. From here on it travels unchanged.
    send.settle = send.last = bit * 2 == core;
    send.relay = !send.settle;
    const Extent theirs = given.back();
    given.pop_back();
    AppendRound({send, Recv(partner(bit), Data(theirs))}, schedule);
    owned = {std::min(owned.begin, theirs.begin), owned.count + theirs.count};
  }
}

}  // namespace

// core is the largest power of two of members. A member past it sends its
// buffer to a partner in the core first and receives the result from it at the
// end. In each round of the reduce-scatter a core member exchanges one half of
// the range it owns with a partner at twice the previous distance, so most
// bytes go to near members. The allgather retraces the same rounds backwards.
void AppendHalvingDoubling(const Group& group, Extent range, bool raw,
                           Schedule* schedule) {
  int core = 1;
  while (core * 2 <= group.size()) core *= 2;
  const auto member = [&](int place) {
    return group.members[static_cast<std::size_t>(place)];
  };
  if (group.me >= core) {
    const int partner = member(group.me - core);
    Action fold = Send(partner, Data(range));
    fold.raw = raw;
    AppendRound({fold}, schedule);
    AppendRound({Recv(partner, Data(range))}, schedule);
    return;
  }
  const bool folds = group.me + core < group.size();
  if (folds) {
    const Action reduce = ReduceLanding(Data(range), raw, false);
    NeedScratch(range.count, schedule);
    AppendRound({Recv(member(group.me + core), reduce.src), reduce}, schedule);
  }
  AppendExchange(group, core, range, raw && !folds, schedule);
  if (folds) {
    Action unfold = Send(member(group.me + core), Data(range));
    unfold.relay = true;
    AppendRound({unfold}, schedule);
  }
}

// Source: Thakur et al., IJHPCA 2005.
Price HalvingDoublingPrice(const CallQuestion& question, double bytes) {
  const HostMap& hosts = question.hosts;
  Price price;
  double half = bytes / 2;
  Traffic longest = {0, 0, 0, 0};
  for (int k = 0; 1 << k < hosts.core(); ++k, half /= 2) {
    const double line = hosts.Swap(k) * half;
    if (line > longest.line_bytes) longest = {0, half, line, 0};
    const LinkModel link = question.Over(line, question.Filled(half, 1));
    price.Add(1, {1, half, line, half}, link);
    price.Add(1, {1, half, line, 0}, link);
  }
  // Ranks that swap inside their host while others swap across run ahead, and
  // their next messages keep the line from those that are late.
  if (hosts.smallest() != hosts.largest()) {
    LinkModel line;
    line.seconds_per_byte = question.Over(1).seconds_per_byte;
    price.Add(1, longest, line);
  }
  if (hosts.core() < hosts.size()) {
    const double line = hosts.fold() * bytes;
    const double folded = hosts.size() - hosts.core();
    const LinkModel link = question.Over(line, folded / hosts.size());
    price.Add(1, {1, bytes, line, bytes}, link);
    price.Add(1, {1, bytes, line, 0}, link);
  }
  return price;
}

namespace {

Schedule Make(int rank, const CallShape& shape, std::size_t count) {
  Schedule schedule;
  schedule.multi_hop = true;
  AppendHalvingDoubling(AllRanks(rank, shape.size), {0, count}, /*raw=*/true,
                        &schedule);
  return schedule;
}

}  // namespace

constinit const CollectiveAlgorithm allreduce::kHalvingDoubling = {
    .name = "halving_doubling",
    .make = &Make,
    .price = &HalvingDoublingPrice,
};

}  // namespace gradientflow
