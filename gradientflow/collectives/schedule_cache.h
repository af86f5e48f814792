#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <tuple>

#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {

// Schedules of calls that were made before, most of which will be made again:
// training repeats its buckets in each step. NOT thread-safe.
class ScheduleCache {
 public:
  // Returns the schedule for a part of `count` elements of a call.
  std::shared_ptr<const Schedule> Get(const CollectiveCall& call,
                                      const CallPlan& plan,
                                      const CallGroup& group,
                                      std::size_t count);
  // What schedules depend on beyond the call has changed: for all groups, or
  // for this one, which is gone.
  void Clear() { schedules_.clear(); }
  void Forget(GroupId group);

 private:
  // Everything that a schedule depends on, unless its blocks are unequal.
  using Key = std::tuple<GroupId, const CollectiveAlgorithm*, int, std::size_t,
                         std::size_t>;
  std::map<Key, std::shared_ptr<const Schedule>> schedules_;
};

}  // namespace gradientflow
