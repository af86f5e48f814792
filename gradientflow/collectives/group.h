#pragma once

#include <cstddef>
#include <vector>

#include "gradientflow/collectives/schedule.h"

// The building blocks of schedules; not for callers of collectives.
namespace gradientflow {

// Some of the ranks, and which of them this rank is.
struct Group {
  std::vector<int> members;
  int me = 0;  // This rank's index in `members`.

  int size() const { return static_cast<int>(members.size()); }
  // Index of the member `hops` places after this one, counted around; `hops`
  // may be negative.
  int Place(int hops) const { return ((me + hops) % size() + size()) % size(); }
  // The rank that is that member.
  int Member(int hops) const {
    return members[static_cast<std::size_t>(Place(hops))];
  }
};

// The group of ranks 0 to size - 1.
Group AllRanks(int rank, int size);
// The same ranks, with those of one host behind one another: hosts in the order
// of their lowest ranks, and the ranks of a host ascending. A ring in this
// order enters and leaves every host once. An empty topology changes nothing.
Group RingOfHosts(int rank, int size, const Topology& topology);

// The ranks of each host, ascending; hosts in the order of their lowest ranks.
std::vector<std::vector<int>> RanksOfHosts(const Topology& topology);
struct HostPlace {
  std::size_t host = 0;
  int local = 0;  // Index among the ranks of the host.
};
HostPlace PlaceOf(int rank, const std::vector<std::vector<int>>& hosts);
// A column: the ranks that have this place on their hosts, by host. It has no
// members if some host has no such place.
Group ColumnOf(HostPlace place, const std::vector<std::vector<int>>& hosts);

Slice Data(Extent block);
Slice Data(std::size_t begin, std::size_t count);
Slice Input(std::size_t begin, std::size_t count);
Slice Scratch(std::size_t begin, std::size_t count);

// Block b when `range` is cut into `size` blocks.
Extent SubBlock(Extent range, int size, int b);

Action Send(int peer, Slice src);
// A message whose sender knows where it lands: Action::there.
Action SendTo(int peer, Slice src, Slice there);
Action Recv(int peer, Slice dst);
Action Copy(Slice src, Slice dst);
Action Sync();
// A kPullReduce of the contributions `src` of all sharing ranks, to a finished
// result in `dst`.
Action SumOf(Slice src, Slice dst);

// The operands of AppendReduceMany: one landing of dst.count elements at the
// start of scratch for each of `sources` other ranks, and `own`, which is at
// place `own_place` in rank order.
struct Landings {
  int sources = 0;
  int own_place = 0;
  Slice own;
};
// The slice of scratch where the contribution of the rank at `place` lands, if
// this rank is at `own_place`.
Slice LandingOf(int place, int own_place, std::size_t count);
// Appends a raw kReduceMany into `dst`. If there are more than
// kMaxReduceParties operands, it appends several that sum in batches, the first
// of which begins with `own`.
void AppendReduceMany(const Landings& landings, Slice dst, bool is_final,
                      std::vector<Action>* round);

// Appends the actions that have something to do as one round, if there are any.
void AppendRound(std::vector<Action> actions, Schedule* schedule);
void NeedScratch(std::size_t elements, Schedule* schedule);

}  // namespace gradientflow
