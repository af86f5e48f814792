#pragma once

#include "gradientflow/collectives/cost_model.h"
#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

// Allreduces that others are made of. An Append* adds the algorithm's rounds,
// run by some of the ranks on a part of the buffer, to a schedule; the formula
// beside it says what they take on equal, separate links. Formulas are those of
// gradientflow/docs/algorithms.md: seconds of `bytes` among `size` ranks.
namespace gradientflow {

// `raw`: `range` of kData still holds this rank's own contribution; otherwise
// what travels here are partial results, scaled before.
void AppendRing(const Group& group, Extent range, bool raw, Schedule* schedule);
double RingSeconds(int size, double bytes, const LinkModel& link);

void AppendHalvingDoubling(const Group& group, Extent range, bool raw,
                           Schedule* schedule);
double HalvingDoublingSeconds(int size, double bytes, const LinkModel& link);

// REQUIRES group.size() <= kMaxReduceParties. Leaves `range` rounded to the
// wire dtype, alike on all members.
struct OneRound {
  bool raw = false;   // As above.
  bool last = false;  // What it leaves is not sent on: see Step::last.
};
void AppendOneRound(const Group& group, Extent range, OneRound how,
                    Schedule* schedule);
double OneRoundSeconds(int size, double bytes, const LinkModel& link);

}  // namespace gradientflow
