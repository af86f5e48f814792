#pragma once

#include <cstddef>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/communicator/card.h"

// What follows from the cards of all ranks. Every rank computes the same
// result, so that all go on, or all fail for the same reason.
namespace gradientflow {

// Returns which ranks share a host, and whether hosts share memory. A host with
// more ranks than a kernel adds up at once counts as several hosts of about
// equal size. Hosts share memory only if every rank of the job can.
CallGroup GroupOf(int rank, const std::vector<Card>& cards);

// Returns whether two ranks are to share memory.
bool ShareMemory(const CallGroup& group, int rank, int other);

// Returns the first rank that cannot share memory although others are on its
// host; -1 if there is none.
int RankWithoutMemory(const std::vector<Card>& cards);

// Returns the ranks that `rank` is linked to from the beginning, ascending.
// `needed` says that links are made when they are needed: then these are the
// ranks that it shares memory with, and those at distances of powers of two in
// both directions. Rings, doubling, Bruck's algorithms and trees need no
// others; and each rank is log2 p links away at most, so news of a death
// travels fast.
std::vector<int> NeighboursOf(const CallGroup& group, int rank, bool needed);

// Returns kResourceExhausted, with both numbers, if a rank may not open the
// file descriptors that its links need at the beginning; `needed` as in
// NeighboursOf(). `lanes` is the number of connections to a rank of another
// host.
Status CheckDescriptors(const CallGroup& group, const std::vector<Card>& cards,
                        int lanes, bool needed);

// Raises the limit of open files for `wanted` more, as far as the hard limit
// permits. Returns how many more file descriptors this process may then open.
std::size_t RoomForDescriptors(std::size_t wanted);

// Returns how many descriptors to ask for in a job of `ranks` before the other
// ranks are known: the most that CheckDescriptors() requires, and some for the
// framework.
std::size_t MostDescriptors(int ranks, int lanes);

}  // namespace gradientflow
