#include "gradientflow/planner/hosts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::planner {

Result<HostOptions> ReadHosts(const CsvTable& table) {
  GF_RETURN_IF_ERROR(table.HasOnly({"hosts", "ranks", "line_gbps"}));
  HostOptions options;
  Status status;
  int ranks = 0;
  for (std::size_t row = 0; row < table.rows(); ++row) {
    Host host;
    host.ranks = table.Count(row, "ranks", 1, &status);
    if (table.Has("line_gbps")) {
      host.line_gbps = table.Number(row, "line_gbps", &status);
    }
    const int count =
        table.Has("hosts") ? table.Count(row, "hosts", 1, &status) : 1;
    GF_RETURN_IF_ERROR(status);
    if (std::isinf(host.line_gbps)) {
      return table.Problem(row, "line_gbps", "expected a finite number");
    }
    if (count > (kMostRanks - ranks) / host.ranks) {
      return table.Problem(row, "ranks",
                           StrCat("expected at most ", kMostRanks, " in all"));
    }
    ranks += count * host.ranks;
    options.hosts.insert(options.hosts.end(), static_cast<std::size_t>(count),
                         host);
  }
  if (!options.hosts.empty()) return options;
  return Status(StatusCode::kInvalidArgument, "hosts: there are none");
}

Result<HostOptions> HostsFromLists(const std::vector<int>& ranks_per_host,
                                   const std::vector<double>& line_gbps) {
  HostOptions options;
  if (ranks_per_host.size() == 1) {
    options.ranks_per_host = ranks_per_host.front();
  }
  if (line_gbps.size() == 1) options.line_gbps = line_gbps.front();
  const std::size_t count = std::max(ranks_per_host.size(), line_gbps.size());
  if (count <= 1) return options;
  const auto wrong = [&](const char* name, std::size_t size,
                         const char* other) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat(name, ": expected one value, or one for each of the ",
                         count, " hosts of ", other, "; seen ", size));
  };
  if (ranks_per_host.size() > 1 && ranks_per_host.size() < count) {
    return wrong("--ranks-per-host", ranks_per_host.size(), "--line-gbps");
  }
  if (line_gbps.size() > 1 && line_gbps.size() < count) {
    return wrong("--line-gbps", line_gbps.size(), "--ranks-per-host");
  }
  for (std::size_t i = 0; i < count; ++i) {
    options.hosts.push_back(
        {ranks_per_host.size() > 1 ? ranks_per_host[i] : options.ranks_per_host,
         line_gbps.size() > 1 ? line_gbps[i] : options.line_gbps});
  }
  return options;
}

}  // namespace gradientflow::planner
