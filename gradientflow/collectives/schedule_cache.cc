#include "gradientflow/collectives/schedule_cache.h"

#include <utility>

namespace gradientflow {
namespace {

constexpr std::size_t kKept = 64;

}  // namespace

std::shared_ptr<const Schedule> ScheduleCache::Get(const CollectiveCall& call,
                                                   const CallPlan& plan,
                                                   const CallGroup& group,
                                                   std::size_t count) {
  const bool by_counts = !call.send_counts.empty() || !call.recv_counts.empty();
  const Key key{call.group, plan.algorithm, call.root, count,
                SizeOf(call.wire)};
  if (!by_counts) {
    const auto found = schedules_.find(key);
    if (found != schedules_.end()) return found->second;
  }
  auto schedule =
      std::make_shared<const Schedule>(ScheduleFor(call, plan, group, count));
  if (!by_counts) {
    if (schedules_.size() >= kKept) schedules_.clear();
    schedules_.emplace(key, schedule);
  }
  return schedule;
}

void ScheduleCache::Forget(GroupId group) {
  std::erase_if(schedules_, [group](const auto& entry) {
    return std::get<GroupId>(entry.first) == group;
  });
}

}  // namespace gradientflow
