#pragma once

#include <cstddef>
#include <vector>

#include "gradientflow/collectives/schedule.h"

// What the schedules are put together from; not for callers.
namespace gradientflow {

// Some of the ranks, and which of them this one is.
struct Group {
  std::vector<int> members;
  int me = 0;  // Index into members.

  int size() const { return static_cast<int>(members.size()); }
  // The member `hops` places behind me, around; hops may be negative.
  int Place(int hops) const { return ((me + hops) % size() + size()) % size(); }
};

// Ranks 0 ... size - 1.
Group AllRanks(int rank, int size);

Slice Data(Extent block);
Slice Data(std::size_t begin, std::size_t count);
Slice Input(std::size_t begin, std::size_t count);
Slice Scratch(std::size_t begin, std::size_t count);

// Block b of `size` of `range`.
Extent SubBlock(Extent range, int size, int b);

Step Send(int peer, Slice src);
Step Recv(int peer, Slice dst);
Step Copy(Slice src, Slice dst);
Step Sync();

// What AppendReduceMany sums: landings of dst.count elements at the start of
// scratch, from `sources` other ranks, and `own` at place `own_place`.
struct Landings {
  int sources = 0;
  int own_place = 0;
  Slice own;
};
// Where the contribution of the rank at `place` lands when mine is at
// `own_place`.
Slice LandingOf(int place, int own_place, std::size_t count);
// kReduceMany into `dst`, raw. More than kMaxReduceParties: several of them,
// own first.
void AppendReduceMany(const Landings& landings, Slice dst, bool is_final,
                      std::vector<Step>* round);

// Adds the steps that have something to do as one round, if any has.
void AppendRound(std::vector<Step> steps, Schedule* schedule);
void NeedScratch(std::size_t elements, Schedule* schedule);

}  // namespace gradientflow
