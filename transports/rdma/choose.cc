#include "transports/rdma/choose.h"

#include <algorithm>
#include <cstddef>
#include <tuple>

#include "gradientflow/base/str_cat.h"
#include "transports/name_filter.h"

namespace gradientflow {
namespace {

// Over Ethernet, link-local addresses of hosts may be equal. In InfiniBand they
// are what the hardware has.
bool IsUsable(const RdmaPort& port, const RdmaGid& gid) {
  return !port.ethernet || !gid.is_link_local();
}

// RoCE v2 gets through routers, IPv4 through most of them.
auto Preference(const RdmaGid& gid) {
  return std::tuple(gid.type == IBV_GID_TYPE_ROCE_V1, !gid.is_ipv4(),
                    gid.index);
}

int CommonBits(const RdmaGid& a, const RdmaGid& b) {
  for (std::size_t i = 0; i < a.bytes.size(); ++i) {
    const unsigned differ = a.bytes[i] ^ b.bytes[i];
    if (differ == 0) continue;
    int bits = static_cast<int>(8 * i);
    for (unsigned bit = 0x80; (differ & bit) == 0; bit >>= 1) ++bits;
    return bits;
  }
  return 128;
}

struct Candidate {
  RdmaChoice choice;
  std::size_t way = 0;  // Its place among the addresses of the peers' choice.
};

// Why a port cannot be used, or nothing.
std::string Problem(const RdmaPort& port) {
  if (!port.active) return StrCat("is ", port.state);
  if (port.max_message_bytes < kLeastMessageBytes) {
    return StrCat("writes at most ", port.max_message_bytes,
                  " bytes at once, expected ", kLeastMessageBytes);
  }
  if (std::none_of(port.gids.begin(), port.gids.end(),
                   [&](const RdmaGid& gid) { return IsUsable(port, gid); })) {
    return "has no address that other hosts reach";
  }
  return {};
}

Candidate Consider(const RdmaDevice& device, const RdmaPort& port,
                   const RdmaWishes& wishes) {
  Candidate candidate;
  candidate.choice.device = device.name;
  candidate.choice.port = port;
  std::vector<RdmaGid>& gids = candidate.choice.port.gids;
  std::erase_if(gids, [&](const RdmaGid& gid) { return !IsUsable(port, gid); });
  std::sort(gids.begin(), gids.end(), [](const RdmaGid& a, const RdmaGid& b) {
    return Preference(a) < Preference(b);
  });
  gids.resize(std::min(gids.size(), kMostGids));
  candidate.way = wishes.reached_by.size();
  for (const RdmaGid& gid : gids) {
    const auto found = std::find(wishes.reached_by.begin(),
                                 wishes.reached_by.end(), gid.ToString());
    candidate.way =
        std::min(candidate.way,
                 static_cast<std::size_t>(found - wishes.reached_by.begin()));
  }
  return candidate;
}

// The name of a device stands for all its ports.
bool IsWanted(const NameFilter& filter, const std::string& device,
              const std::string& port) {
  const bool named = filter.Names(device) || filter.Names(port);
  return filter.names.empty() || named != filter.excludes;
}

bool SameWorth(const Candidate& a, const Candidate& b,
               const RdmaWishes& wishes) {
  const auto on_way = [&](const Candidate& of) {
    return of.way < wishes.reached_by.size();
  };
  return on_way(a) == on_way(b) && a.choice.port.gbps == b.choice.port.gbps;
}

// Ranks of a host take the best ports in turn. `candidates` begin with those.
std::vector<RdmaChoice> TakeInTurn(const std::vector<Candidate>& candidates,
                                   const RdmaWishes& wishes) {
  std::size_t alike = 1;
  while (alike < candidates.size() &&
         SameWorth(candidates[0], candidates[alike], wishes)) {
    ++alike;
  }
  // The next rank goes on where this one's ports end.
  const auto ports =
      std::min(static_cast<std::size_t>(std::max(wishes.ports, 1)), alike);
  const std::size_t turn = static_cast<std::size_t>(wishes.turn) * ports;
  std::vector<RdmaChoice> choices;
  for (std::size_t i = 0; i < ports; ++i) {
    const Candidate& of = candidates[(turn + i) % alike];
    choices.push_back(of.choice);
    choices.back().why =
        StrCat(of.way < wishes.reached_by.size()
                   ? "its address is one by which peers reach this rank"
                   : "no port has an address by which peers reach this rank",
               alike > 1 ? StrCat(", one of ", alike, " alike") : "");
  }
  std::stable_sort(choices.begin(), choices.end(),
                   [](const RdmaChoice& a, const RdmaChoice& b) {
                     return a.port.gids.front().bytes <
                            b.port.gids.front().bytes;
                   });
  return choices;
}

}  // namespace

Result<std::vector<RdmaChoice>> ChooseRails(
    const std::vector<RdmaDevice>& devices, const RdmaWishes& wishes) {
  const NameFilter filter(wishes.devices);
  std::vector<Candidate> candidates;
  std::string seen;
  bool named = false;
  for (const RdmaDevice& device : devices) {
    if (!device.problem.empty()) {
      seen += StrCat("; ", device.name, " ", device.problem);
      named |= IsWanted(filter, device.name, device.name);
    }
    for (const RdmaPort& port : device.ports) {
      const std::string name = StrCat(device.name, ":", port.number);
      if (!IsWanted(filter, device.name, name)) {
        seen += StrCat("; ", name, " is not among the devices wanted");
        continue;
      }
      named = true;
      const std::string problem = Problem(port);
      if (problem.empty()) {
        candidates.push_back(Consider(device, port, wishes));
      } else {
        seen += StrCat("; ", name, " ", problem);
      }
    }
  }
  if (candidates.empty()) {
    return Status(named || devices.empty() ? StatusCode::kUnavailable
                                           : StatusCode::kInvalidArgument,
                  StrCat("no RDMA port can be used",
                         wishes.devices.empty()
                             ? ""
                             : StrCat(" (wanted: \"", wishes.devices, "\")"),
                         seen.empty() ? ": there is no device" : seen));
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return std::tuple(a.way, -a.choice.port.gbps) <
                            std::tuple(b.way, -b.choice.port.gbps);
                   });
  return TakeInTurn(candidates, wishes);
}

// Link-local InfiniBand addresses share their first half if they are in one
// subnet, so they need no rule of their own.
std::optional<std::pair<std::size_t, std::size_t>> MatchGids(
    const std::vector<RdmaGid>& lower, const std::vector<RdmaGid>& higher) {
  std::optional<std::pair<std::size_t, std::size_t>> best;
  std::tuple<bool, bool, int> best_score;
  for (std::size_t i = 0; i < lower.size(); ++i) {
    for (std::size_t j = 0; j < higher.size(); ++j) {
      const RdmaGid& a = lower[i];
      const RdmaGid& b = higher[j];
      if (a.type != b.type || a.is_ipv4() != b.is_ipv4()) continue;
      const std::tuple<bool, bool, int> score(a.type != IBV_GID_TYPE_ROCE_V1,
                                              a.is_ipv4(), CommonBits(a, b));
      if (best && score <= best_score) continue;
      best.emplace(i, j);
      best_score = score;
    }
  }
  return best;
}

}  // namespace gradientflow
