#include "gradientflow/collectives/group_collective.h"

namespace gradientflow {

void GroupCollective::Start(const CollectiveCall& call, Done done) {
  if (group_ == 0) return executor_.Start(call, done);
  CollectiveCall of_group = call;
  of_group.group = group_;
  executor_.Start(of_group, done);
}

}  // namespace gradientflow
