#pragma once

#include "gradientflow/collectives/cost_model.h"
#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

// Allreduces that other algorithms are built from. An Append* function adds the
// algorithm's rounds, run by the members of a group on a part of the buffer, to
// a schedule. The formula beside it predicts how many seconds `bytes` take
// among `size` ranks on equal, separate links; see
// gradientflow/docs/algorithms.md.
namespace gradientflow {

// `raw` says that `range` of kData still holds this rank's own contribution.
// Otherwise it holds a partial result, which has been scaled already.
void AppendRing(const Group& group, Extent range, bool raw, Schedule* schedule);
double RingSeconds(int size, double bytes, const LinkModel& link);

void AppendHalvingDoubling(const Group& group, Extent range, bool raw,
                           Schedule* schedule);
double HalvingDoublingSeconds(int size, double bytes, const LinkModel& link);

// REQUIRES group.size() <= kMaxReduceParties. Leaves `range` rounded to the
// wire dtype, with the same bits on all members.
struct OneRound {
  bool raw = false;   // As for AppendRing().
  bool last = false;  // No later step sends the result: see Step::last.
};
void AppendOneRound(const Group& group, Extent range, OneRound how,
                    Schedule* schedule);
double OneRoundSeconds(int size, double bytes, const LinkModel& link);

}  // namespace gradientflow
