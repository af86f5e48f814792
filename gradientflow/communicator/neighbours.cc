#include "gradientflow/communicator/neighbours.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "kernels/kernels.h"
#include "transports/registry/registry.h"

namespace gradientflow {
namespace {

// A link through shared memory: a socket, the peer's process, its memory.
constexpr std::size_t kPerNeighbour = 3;
// The poller, and listeners.
constexpr std::size_t kBesides = 8;
// Connections that are made and dropped, those over which ranks meet, and files
// that the framework opens.
constexpr std::size_t kSpare = 120;

// `near` and `far` are the numbers of other ranks on the host and elsewhere.
std::size_t DescriptorsFor(std::size_t near, std::size_t far, int lanes) {
  return kBesides + kPerNeighbour * near +
         static_cast<std::size_t>(lanes) * far;
}

bool SharesMemory(const Card& card) {
  return std::any_of(
      Transports().begin(), Transports().end(), [&](const TransportKind* kind) {
        return kind->host_id != nullptr && !AddressOf(card, *kind).empty();
      });
}

std::map<std::string, int> RanksByHost(const std::vector<Card>& cards) {
  std::map<std::string, int> ranks;
  for (const Card& card : cards) ++ranks[card.host_id];
  return ranks;
}

}  // namespace

bool ShareMemory(const CallGroup& group, int rank, int other) {
  const std::vector<int>& host = group.topology.host;
  return group.hosts_share && host[static_cast<std::size_t>(rank)] ==
                                  host[static_cast<std::size_t>(other)];
}

CallGroup GroupOf(int rank, const std::vector<Card>& cards) {
  constexpr int kMost = kernels::kMaxParties;
  CallGroup group;
  group.rank = rank;
  group.size = static_cast<int>(cards.size());
  std::map<std::string, int> ranks = RanksByHost(cards);
  std::map<std::string, int> seen;
  std::map<std::pair<std::string, int>, int> hosts;
  for (const Card& card : cards) {
    const int all = ranks[card.host_id];
    const int parts = (all + kMost - 1) / kMost;
    const int part = seen[card.host_id]++ * parts / all;
    group.topology.host.push_back(hosts
                                      .emplace(std::pair(card.host_id, part),
                                               static_cast<int>(hosts.size()))
                                      .first->second);
  }
  group.hosts_share = hosts.size() < cards.size() &&
                      std::all_of(cards.begin(), cards.end(), &SharesMemory);
  group.all_share = group.hosts_share && hosts.size() == 1;
  return group;
}

int RankWithoutMemory(const std::vector<Card>& cards) {
  std::map<std::string, int> ranks = RanksByHost(cards);
  const bool some = std::any_of(cards.begin(), cards.end(), &SharesMemory);
  for (std::size_t r = 0; some && r < cards.size(); ++r) {
    if (ranks[cards[r].host_id] > 1 && !SharesMemory(cards[r])) {
      return static_cast<int>(r);
    }
  }
  return -1;
}

std::vector<int> NeighboursOf(const CallGroup& group, int rank, bool needed) {
  const int size = group.size;
  std::vector<bool> near(static_cast<std::size_t>(size), !needed);
  for (int distance = 1; distance < size; distance *= 2) {
    near[static_cast<std::size_t>((rank + distance) % size)] = true;
    near[static_cast<std::size_t>((rank - distance + size) % size)] = true;
  }
  std::vector<int> neighbours;
  for (int r = 0; r < size; ++r) {
    const bool linked = near[static_cast<std::size_t>(r)];
    if (r != rank && (linked || ShareMemory(group, rank, r))) {
      neighbours.push_back(r);
    }
  }
  return neighbours;
}

Status CheckDescriptors(const CallGroup& group, const std::vector<Card>& cards,
                        int lanes, bool needed) {
  for (int r = 0; r < group.size; ++r) {
    const std::vector<int> neighbours = NeighboursOf(group, r, needed);
    const auto near = static_cast<std::size_t>(
        std::count_if(neighbours.begin(), neighbours.end(),
                      [&](int other) { return ShareMemory(group, r, other); }));
    const std::size_t enough =
        DescriptorsFor(near, neighbours.size() - near, lanes);
    const std::size_t seen = cards[static_cast<std::size_t>(r)].descriptors;
    if (seen >= enough) continue;
    return Status(StatusCode::kResourceExhausted,
                  StrCat("rank ", r, " needs ", enough,
                         " file descriptors for its links and may open ", seen,
                         " more: raise its hard limit (ulimit -Hn)",
                         needed ? "" : ", or set connect=needed",
                         lanes > 2 ? ", or set connections=1" : ""));
  }
  return Status();
}

std::size_t MostDescriptors(int ranks, int lanes) {
  const auto others = static_cast<std::size_t>(ranks);
  return kSpare + std::max(DescriptorsFor(others, 0, lanes),
                           DescriptorsFor(0, others, lanes));
}

// The list of open descriptors includes the one by which it is read.
std::size_t RoomForDescriptors(std::size_t wanted) {
  rlim_t open = 0;
  std::error_code error;
  std::filesystem::directory_iterator at("/proc/self/fd", error);
  for (; at != std::filesystem::directory_iterator(); at.increment(error)) {
    ++open;
  }
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  const rlim_t target = std::min<rlim_t>(open + wanted, limit.rlim_max);
  if (limit.rlim_cur < target) {
    rlimit raised = limit;
    raised.rlim_cur = target;
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return limit.rlim_cur > open ? limit.rlim_cur - open : 0;
}

}  // namespace gradientflow
