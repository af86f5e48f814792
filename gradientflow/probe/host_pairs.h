#pragma once

#include <cstddef>
#include <vector>

namespace gradientflow {

// Which ranks are on which host, and which of them measure as pairs. A value.
class HostPairs {
 public:
  // The host of each rank; any numbers, of which equal ones are one host. Hosts
  // have the order of their first ranks.
  explicit HostPairs(const std::vector<int>& host_of_rank);

  struct Pair {
    int leader = 0;
    int follower = 0;
    int host = 0;  // Of the leader.
    bool operator==(const Pair&) const = default;
  };
  using Pairs = std::vector<Pair>;

  int hosts() const { return static_cast<int>(ranks_.size()); }
  int most() const;  // Ranks of the fullest host.
  // REQUIRES a rank of the job.
  int HostOf(int rank) const;
  // Neighbours on each host. The first host that has any comes first.
  Pairs Inside() const;
  // Each host of one half with one of the other: each of its ranks that has a
  // counterpart there. If hosts of a rack follow one another, all of this
  // passes between the racks. An odd host is left out.
  Pairs Across() const;

 private:
  std::vector<std::vector<int>> ranks_;  // Of each host.
};

}  // namespace gradientflow
