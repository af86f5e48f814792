#pragma once

#include <cstddef>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/communicator/card.h"

// What the cards of all ranks say together. Every rank comes to the same
// result, so that all go on, or all fail, for the same reason.
namespace gradientflow {

// Which ranks share a host, and whether hosts share memory. A host with more
// ranks than a kernel adds up at once counts as several hosts of about equal
// size. Hosts share memory only if every rank of the job can.
CallGroup GroupOf(int rank, const std::vector<Card>& cards);

// The first rank that cannot share memory although others are on its host; -1:
// none.
int RankWithoutMemory(const std::vector<Card>& cards);

// Returns kResourceExhausted, with both numbers, if a rank may not open the
// file descriptors that its links need. `lanes` is the number of connections to
// a rank of another host.
Status CheckDescriptors(const CallGroup& group, const std::vector<Card>& cards,
                        int lanes);

// How many file descriptors this process may open beyond those that it has
// open, once the limit is raised for `wanted` more, as far as the hard limit
// permits.
std::size_t RoomForDescriptors(std::size_t wanted);

// How many to want before the others are known, for a job of `ranks`: what
// CheckDescriptors() asks for at most, and some for the framework.
std::size_t MostDescriptors(int ranks, int lanes);

}  // namespace gradientflow
