#include "gradientflow/collectives/group_calls.h"

#include "gradientflow/base/str_cat.h"

namespace gradientflow {

Status GroupCalls::CheckIdle() const {
  for (const CallQueue& queue : queues) {
    if (queue.empty()) continue;
    return Status(StatusCode::kFailedPrecondition,
                  StrCat("group ", group.id, " is closed with ", queue.calls(),
                         " calls in flight, ", Name(queue.front().call.kind),
                         " #", queue.front().sequence, " first"));
  }
  return Status();
}

}  // namespace gradientflow
