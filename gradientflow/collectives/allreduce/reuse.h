#pragma once

#include <cstddef>

#include "gradientflow/collectives/algorithm.h"
#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

// Allreduces that other algorithms are built from. An Append* function adds the
// algorithm's rounds, run by the members of a group on a part of the buffer, to
// a schedule. The price beside it is that of `bytes` among all ranks of the
// question; see gradientflow/docs/algorithms.md.
namespace gradientflow {

// `raw` says that `range` of kData still holds this rank's own contribution.
// Otherwise it holds a partial result, which has been scaled already.
void AppendRing(const Group& group, Extent range, bool raw, Schedule* schedule);
Price RingPrice(const CallQuestion& question, double bytes);

void AppendHalvingDoubling(const Group& group, Extent range, bool raw,
                           Schedule* schedule);
Price HalvingDoublingPrice(const CallQuestion& question, double bytes);

// Two rounds of messages. Each member knows where its messages land on its
// peers (Action::there). Leaves `range` rounded to the wire dtype and in its
// last form, with the same bits on all members.
void AppendTwoSync(const Group& group, Extent range, bool raw,
                   Schedule* schedule);
Schedule MakeTwoSync(int rank, const CallShape& shape, std::size_t count);
Price TwoSyncPrice(const CallQuestion& question, double bytes);

// REQUIRES group.size() <= kMaxReduceParties. Leaves `range` rounded to the
// wire dtype, with the same bits on all members.
struct OneRound {
  bool raw = false;   // As for AppendRing().
  bool last = false;  // No later action sends the result: see Action::last.
};
void AppendOneRound(const Group& group, Extent range, OneRound how,
                    Schedule* schedule);
Price OneRoundPrice(const CallQuestion& question, double bytes);

}  // namespace gradientflow
