#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "gradientflow/base/status.h"
#include "gradientflow/planner/measured.h"

// The file "price": what a node costs.
namespace gradientflow::planner {

// Nodes that may be taken away. All of this is the user's to say.
struct SpotTerms {
  double interruptions_per_node_hour = 0;
  // Seconds of training between two checkpoints. An interruption loses what
  // came after the last one.
  double checkpoint_interval_seconds = 0;
  double checkpoint_seconds = 0;  // While one is written nothing else is done.
  double restart_seconds = 0;     // Until a job trains again, on as many nodes.
};

struct NodePrice {
  Provenance measured;
  std::string currency;
  double price_per_node_hour = 0;
  double price_per_gb_out = 0;    // For each 10^9 bytes that leave a host.
  std::optional<SpotTerms> spot;  // Unset: nodes stay.
};

// The text of a price, and its inverse. ParsePrice refuses what ParseProfile
// refuses, with the name of the field. Any thread.
std::string PriceText(const NodePrice& price);
Result<NodePrice> ParsePrice(std::string_view text);

}  // namespace gradientflow::planner
