#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/collectives/call_queue.h"
#include "gradientflow/collectives/collective.h"

namespace gradientflow {

// A group whose calls an executor takes: how they are planned, and what is
// under way, by channel.
struct GroupCalls {
  GroupCalls(const CallGroup& of, const CostModels& costs,
             const Cutting& cutting, const CollectiveAlgorithm* algorithm)
      : group(of), planner(group, costs, cutting, algorithm) {}
  GroupCalls(const GroupCalls&) = delete;  // The planner borrows the group.
  GroupCalls& operator=(const GroupCalls&) = delete;

  CallQueue& queue(Channel channel) {
    return queues[static_cast<std::size_t>(channel)];
  }
  std::uint64_t& bytes_sent(Channel channel) {
    return sent[static_cast<std::size_t>(channel)];
  }
  // Returns kFailedPrecondition, with the first call, if calls are under way.
  Status CheckIdle() const;

  CallGroup group;
  CallPlanner planner;
  std::array<CallQueue, kChannels> queues;
  std::array<std::uint64_t, kChannels> sent{};
};

}  // namespace gradientflow
