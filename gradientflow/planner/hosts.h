#pragma once

#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/planner/cluster.h"
#include "gradientflow/planner/csv_table.h"

// Hosts as users write them down: docs/planner.md, "hosts".
namespace gradientflow::planner {

// More ranks than this are not planned.
inline constexpr int kMostRanks = 65536;

// From a table with the columns `ranks` and, if they are there, `line_gbps` and
// `hosts`, the number of such hosts. kInvalidArgument names line and column.
Result<HostOptions> ReadHosts(const CsvTable& table);

// From lists of which each has one value for all hosts, or one for each host.
// Empty ones stand for 1 rank, and for the probed line. kInvalidArgument names
// the option of gradientflow_plan whose list is of another length.
Result<HostOptions> HostsFromLists(const std::vector<int>& ranks_per_host,
                                   const std::vector<double>& line_gbps);

}  // namespace gradientflow::planner
