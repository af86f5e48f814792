#include "gradientflow/session/lent_places.h"

#include <utility>
#include <vector>

namespace gradientflow {

bool LentPlaces::Lend(const CallGroup& ranks) {
  const std::vector<int> members = ranks.FabricRanks();
  // What the session before it has sent may still be on its way.
  const auto quiet = [&] { return core_.executor().PlacesAreQuiet(); };
  core_.progress().Drive(quiet);
  core_.progress().Do([&] { lent_ = core_.executor().LendPlaces(members); });
  return lent_;
}

void LentPlaces::Settle(GroupId group, bool all_lend) {
  if (!lent_) return;
  if (!all_lend) return TakeBack();
  group_ = group;
  core_.progress().Do([&] { core_.executor().UsePlaces(group); });
}

void LentPlaces::TakeBack() {
  if (!std::exchange(lent_, false)) return;
  core_.progress().Do([&] { core_.executor().EndPlaces(group_); });
}

}  // namespace gradientflow
