#include "gradientflow/probe/host_pairs.h"

#include <algorithm>

namespace gradientflow {

HostPairs::HostPairs(const std::vector<int>& host_of_rank) {
  std::vector<int> names;
  for (std::size_t r = 0; r < host_of_rank.size(); ++r) {
    const auto known = std::find(names.begin(), names.end(), host_of_rank[r]);
    const auto number = static_cast<std::size_t>(known - names.begin());
    if (known == names.end()) {
      names.push_back(host_of_rank[r]);
      ranks_.emplace_back();
    }
    ranks_[number].push_back(static_cast<int>(r));
  }
}

int HostPairs::most() const {
  std::size_t most = 0;
  for (const auto& host : ranks_) most = std::max(most, host.size());
  return static_cast<int>(most);
}

int HostPairs::HostOf(int rank) const {
  const auto has = [&](const std::vector<int>& host) {
    return std::count(host.begin(), host.end(), rank) > 0;
  };
  return static_cast<int>(std::find_if(ranks_.begin(), ranks_.end(), has) -
                          ranks_.begin());
}

HostPairs::Pairs HostPairs::Inside() const {
  Pairs pairs;
  for (std::size_t h = 0; h < ranks_.size(); ++h) {
    for (std::size_t i = 0; i + 1 < ranks_[h].size(); i += 2) {
      pairs.push_back({ranks_[h][i], ranks_[h][i + 1], static_cast<int>(h)});
    }
  }
  return pairs;
}

HostPairs::Pairs HostPairs::Across() const {
  Pairs pairs;
  const std::size_t half = ranks_.size() / 2;
  for (std::size_t h = 0; h < half; ++h) {
    const std::vector<int>& mine = ranks_[h];
    const std::vector<int>& theirs = ranks_[h + half];
    for (std::size_t i = 0; i < std::min(mine.size(), theirs.size()); ++i) {
      pairs.push_back({mine[i], theirs[i], static_cast<int>(h)});
    }
  }
  return pairs;
}

}  // namespace gradientflow
