#include "gradientflow/collectives/placed_calls.h"

#include <set>

namespace gradientflow {
namespace {

// Slots have one layout, so either all ranks place messages on each other or
// the columns between hosts do.
PlacedLayout LayoutOf(const CallGroup& all, const Cutting& cutting) {
  if (all.all_place) {
    return PlacedLayoutFor(all.size, cutting.segment_bytes, cutting.window);
  }
  return PlacedLayoutBetween(HostMap(all.size, all.topology).hosts(), all.size,
                             cutting.segment_bytes, cutting.window);
}

Group PlacingGroup(const CallGroup& all) {
  if (all.all_place) return AllRanks(all.rank, all.size);
  const auto hosts = RanksOfHosts(all.topology);
  return ColumnOf(PlaceOf(all.rank, hosts), hosts);
}

}  // namespace

std::size_t PlacedBytes(const CallGroup& group, const Cutting& cutting) {
  return group.hosts_place ? LayoutOf(group, cutting).part_bytes : 0;
}

PlacedCalls::PlacedCalls(RemotePlaces* places, Fabric& fabric,
                         const CallGroup& all, const Cutting& cutting)
    : all_(all), cutting_(cutting) {
  if (places == nullptr || !(all.all_place || all.hosts_place)) return;
  slots_ = std::make_unique<PlacedSlots>(
      *places, fabric, LayoutOf(all, cutting), PlacingGroup(all));
}

int PlacedCalls::CallBegins(const CallGroup& group, Channel channel) {
  if (slots_ == nullptr) return kNoWindow;
  int window = kNoWindow;
  if (group.id == all_.id) {
    window = static_cast<int>(channel);
  } else if (group.HasPlaces(channel)) {
    window = kGroupWindow;
  }
  if (window != kNoWindow) slots_->CallBegins(window);
  return window;
}

// Ranks of one host that share memory are not linked by RDMA.
bool PlacedCalls::HavePlaces(const std::vector<int>& ranks) const {
  if (all_.all_place) return true;
  if (!all_.hosts_place) return false;
  std::set<int> hosts;
  for (const int rank : ranks) {
    hosts.insert(all_.topology.host[static_cast<std::size_t>(rank)]);
  }
  return hosts.size() == ranks.size();
}

bool PlacedCalls::Lend(const std::vector<int>& ranks) {
  if (slots_ == nullptr || ranks.size() < 2 || !HavePlaces(ranks)) return false;
  Group group;
  group.members = ranks;
  return slots_->BeginGroup(
      PlacedLayoutOfGroup(group.size(), all_.size, cutting_.segment_bytes,
                          cutting_.window),
      group);
}

}  // namespace gradientflow
