#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/communicator/core.h"
#include "transports/wire.h"

namespace gradientflow {

// On what terms a session opens: those that a rank brings, and those that come
// of all ranks' terms.
struct OpeningTerms {
  // No session has the gradient channel of the group that this one is opened
  // on.
  bool channel_is_free = false;
  bool lends_places = false;  // See LentPlaces.
  GroupId own_group = 0;      // A number that no group has, for the session.
  std::uint64_t job = 0;      // Names the run.
};

// What the ranks of a session exchange while it opens. All calls are
// collectives of these ranks, which they make in the same order, each from any
// one thread.
class SessionOpening {
 public:
  // `core` outlives it. `ranks` is the group that the session is opened on.
  SessionOpening(CommunicatorCore& core, const CallGroup& ranks)
      : core_(core), ranks_(ranks) {}

  // Compares what must be equal on all ranks. `text` says it, a line for each
  // setting or tensor; or why this rank cannot go on, in which case it takes
  // part nevertheless, because the others wait for it. Returns the terms for
  // all: a channel is free and places are lent if that is so on every rank,
  // own_group is the largest, and rank 0 names the job.
  // Errors: this rank's own, else the first rank's that cannot go on, else
  // kInvalidArgument with the first line that differs; else why the job ended.
  Result<OpeningTerms> Agree(const Result<std::string>& text,
                             const OpeningTerms& mine);

  // Tells whether every rank has succeeded. If one has not, none goes on.
  Status AllAgree(const Status& mine);

 private:
  // Ranks compare their settings with the first one's; all learn what differs.
  Status NameDifference(const std::string& text, bool differs,
                        std::size_t first_bytes);

  CommunicatorCore& core_;
  const CallGroup& ranks_;
};

}  // namespace gradientflow
