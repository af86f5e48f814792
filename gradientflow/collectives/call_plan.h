#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/choose.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/schedule.h"
#include "transports/wire.h"

namespace gradientflow {

// Who takes part, and how.
struct CallGroup {
  int rank = 0;
  int size = 1;
  GroupId id = 0;
  // The fabric's ranks of ranks 0 ... size - 1; empty: the same.
  std::vector<int> members = {};
  Topology topology;
  bool all_share = false;    // All ranks share memory.
  bool hosts_share = false;  // The ranks of each host do.
  // A call's buffers have the same dtype and the same extents on all ranks.
  // False in a mixed group: some ranks hold what they give to an allreduce
  // packed and in the wire dtype already (a device's pool, staged) and others
  // do not. All still end with the same bits, rounded to the wire dtype.
  bool same_dtypes = true;

  // Memory is no hindrance to a one-sided schedule.
  bool SharesAll() const { return all_share || size == 1; }
  int FabricRank(int r) const {
    return members.empty() ? r : members[static_cast<std::size_t>(r)];
  }
};

// The group of `ranks` of `all`, in that order. It shares no memory: what its
// ranks share belongs to all. kInvalidArgument: a rank is none of `all`, is
// there twice, or this one is missing.
Result<CallGroup> Subgroup(const CallGroup& all, GroupId id,
                           const std::vector<int>& ranks);

// How a call is carried out: the algorithm, and the segments it is cut into.
// Depends on nothing but arguments that are equal on all ranks, so all ranks
// plan alike.
struct CallPlan {
  const AllreduceAlgorithm* algorithm = nullptr;  // Null: no allreduce.
  std::string why;                                // One line for the trace.
  bool one_sided = false;
  bool same_dtypes = true;  // Of the group.
  std::size_t count = 0;    // Elements cut into segments.
  std::size_t segment_elements = 0;
  std::uint64_t segments = 0;
  bool chain = false;  // kBroadcast: down a chain, not a tree.
  // The buffer holds `size` blocks of `count`; a segment is the same part of
  // every block.
  bool blocked_input = false;
  bool blocked_data = false;
};

// Whether such calls combine the ranks' values.
bool Reduces(CollectiveKind kind);

// An allgather to which each rank brings its own number of elements.
bool HasUnevenParts(const CollectiveCall& call);

// Elements that `call` reads or writes on this rank; see CollectiveCall.
// REQUIRES a valid call.
struct CallBuffers {
  std::size_t input = 0;
  std::size_t output = 0;  // With extents: those that take part.
};
CallBuffers BuffersOf(const CollectiveCall& call, const CallGroup& group);

// What the output of `call` is multiplied by after the last rounding.
float UnscaleOf(const CollectiveCall& call);

// Never 0 for extents that hold something.
std::uint64_t HashOf(const std::vector<Extent>& extents);
// `hash` and `value` in one: every bit of both counts.
std::uint64_t MixHash(std::uint64_t hash, std::uint64_t value);

// kInvalidArgument: `group` lacks the memory that `algorithm` needs. Null needs
// nothing.
Status ValidateAlgorithm(const AllreduceAlgorithm* algorithm,
                         const CallGroup& group);

// kInvalidArgument: what is wrong with `call`, whoever's rank it is.
Status ValidateCall(const CollectiveCall& call, const CallGroup& group);

// Plans calls, and remembers the choices of algorithm it made.
// NOT thread-safe.
class CallPlanner {
 public:
  // `standing`: the algorithm of allreduces that ask for none, or what stands
  // in for it where the group's ranks cannot run it; null: the one with the
  // least predicted time.
  CallPlanner(const CallGroup& group, const CostModel& costs,
              std::size_t segment_bytes,
              const AllreduceAlgorithm* standing = nullptr)
      : group_(group),
        costs_(costs),
        segment_bytes_(segment_bytes),
        standing_(standing) {}

  // REQUIRES a valid call.
  CallPlan Plan(const CollectiveCall& call);

  void SetMixedDtypes() { group_.same_dtypes = false; }
  void SetCosts(const CostModel& costs) {
    costs_ = costs;
    choices_.clear();
  }
  const CostModel& costs() const { return costs_; }

 private:
  void ChooseAlgorithm(const CollectiveCall& call, CallPlan* plan);

  CallGroup group_;
  CostModel costs_;
  const std::size_t segment_bytes_;
  const AllreduceAlgorithm* const standing_;
  // By elements and bytes of each on the wire.
  std::map<std::pair<std::size_t, std::size_t>, AllreduceChoice> choices_;
};

// This rank's part in a segment of `count` elements.
Schedule ScheduleFor(const CollectiveCall& call, const CallPlan& plan,
                     const CallGroup& group, std::size_t count);

// A hash of what all ranks must agree on. Calls that differ in one thing never
// have the same; others do with a chance of 2^-64.
std::uint64_t SignatureOf(const CollectiveCall& call, const CallPlan& plan,
                          const CallGroup& group);

}  // namespace gradientflow
