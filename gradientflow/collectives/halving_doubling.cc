#include <algorithm>
#include <utility>
#include <vector>

#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {
namespace {

Step ReduceLanding(Slice dst, bool raw, bool is_final) {
  Step step;
  step.kind = Step::Kind::kReduce;
  step.src = Scratch(0, dst.count);
  step.dst = dst;
  step.raw = raw;
  step.final = is_final;
  return step;
}

// The halves of `owned`: which one I keep, and which I give away.
std::pair<Block, Block> Halve(Block owned, bool low) {
  const Block lower{owned.begin, owned.count / 2};
  const Block upper{owned.begin + lower.count, owned.count - lower.count};
  return low ? std::pair{lower, upper} : std::pair{upper, lower};
}

// Recursive halving among the first `core` members, then doubling.
void AppendExchange(const Group& group, int core, Block range, bool raw,
                    Schedule* schedule) {
  const auto partner = [&](int bit) {
    return group.members[static_cast<std::size_t>(group.me ^ bit)];
  };
  std::vector<Block> given;  // Per bit, what the partner took over.
  Block owned = range;
  for (int bit = 1; bit < core; bit *= 2) {
    const auto [keep, give] = Halve(owned, (group.me & bit) == 0);
    Step send = Send(partner(bit), Data(give));
    send.raw = raw && bit == 1;
    const Step reduce =
        ReduceLanding(Data(keep), raw && bit == 1, bit * 2 == core);
    NeedScratch(keep.count, schedule);
    AppendRound({send, Recv(partner(bit), reduce.src), reduce}, schedule);
    given.push_back(give);
    owned = keep;
  }
  for (int bit = core / 2; bit >= 1; bit /= 2) {
    Step send = Send(partner(bit), Data(owned));
    // From here on all that travels has been rounded once, by its owner.
    send.settle = send.last = bit * 2 == core;
    send.relay = !send.settle;
    const Block theirs = given.back();
    given.pop_back();
    AppendRound({send, Recv(partner(bit), Data(theirs))}, schedule);
    owned = {std::min(owned.begin, theirs.begin), owned.count + theirs.count};
  }
}

}  // namespace

// Members past the largest power of two fold into a partner first, and get the
// result from it last. The rest halve the range they own at each step while the
// distance to the partner doubles, so that most bytes go to near ones, then
// retrace the steps.
void AppendHalvingDoubling(const Group& group, Block range, bool raw,
                           Schedule* schedule) {
  int core = 1;
  while (core * 2 <= group.size()) core *= 2;
  const auto member = [&](int place) {
    return group.members[static_cast<std::size_t>(place)];
  };
  if (group.me >= core) {
    const int partner = member(group.me - core);
    Step fold = Send(partner, Data(range));
    fold.raw = raw;
    AppendRound({fold}, schedule);
    AppendRound({Recv(partner, Data(range))}, schedule);
    return;
  }
  const bool folds = group.me + core < group.size();
  if (folds) {
    const Step reduce = ReduceLanding(Data(range), raw, false);
    NeedScratch(range.count, schedule);
    AppendRound({Recv(member(group.me + core), reduce.src), reduce}, schedule);
  }
  AppendExchange(group, core, range, raw && !folds, schedule);
  if (folds) {
    Step unfold = Send(member(group.me + core), Data(range));
    unfold.relay = true;
    AppendRound({unfold}, schedule);
  }
}

Schedule HalvingDoublingAllreduce(int rank, int size, std::size_t count) {
  Schedule schedule;
  schedule.multi_hop = true;
  AppendHalvingDoubling(AllRanks(rank, size), {0, count}, /*raw=*/true,
                        &schedule);
  return schedule;
}

}  // namespace gradientflow
