#pragma once

#include <string>
#include <string_view>

#include "gradientflow/base/status.h"
#include "gradientflow/planner/measured.h"

// The file "price": what a node costs.
namespace gradientflow::planner {

struct NodePrice {
  Provenance measured;
  std::string currency;
  double price_per_node_hour = 0;
  double price_per_gb_out = 0;  // For each 10^9 bytes that leave a host.
  bool spot = false;            // The node may be taken away.
};

// The text of a price, and its inverse. ParsePrice refuses what ParseProfile
// refuses, with the name of the field. Any thread.
std::string PriceText(const NodePrice& price);
Result<NodePrice> ParsePrice(std::string_view text);

}  // namespace gradientflow::planner
