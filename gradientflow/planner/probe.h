#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/planner/measured.h"

// The file "probe": what the network between two ranks gives.
namespace gradientflow::planner {

enum class Direction { kOneWay, kBothWays };
enum class PairClass { kSameHost, kOtherHost };

struct Bandwidth {
  std::size_t message_bytes = 0;
  Direction direction = Direction::kBothWays;
  std::size_t streams = 1;  // Connections of a pair.
  std::size_t ranks = 1;    // Of one host that send at once.
  // In each direction, of all of these streams and ranks of a host together.
  Level bytes_per_second;
  // That exchange at once, in pairs. More than two show what they share: the
  // lines between switches, or a machine of which each host is a part.
  std::size_t hosts = 2;
};

struct PairLevels {
  Level latency_seconds;
  Level message_seconds;
  Level reduce_bytes_per_second;
  std::vector<Bandwidth> bandwidth;
  // By how much a message that a rank sends, and one that it receives, make a
  // backward longer that runs meanwhile. Only while a backward is replayed.
  std::optional<Level> backward_seconds_per_message;
  // How long one byte sent and one byte received together keep the thread that
  // drives, while that thread also passes over memory. Only at rest.
  std::optional<Level> driver_seconds_per_byte;
};

struct ProbedPair {
  PairClass pair_class = PairClass::kOtherHost;
  std::string transport;
  PairLevels idle;
  std::optional<PairLevels> loaded;  // While a backward is replayed.
};

struct Probe {
  Provenance measured;
  std::size_t hosts = 1;
  std::size_t ranks_per_host = 1;
  std::size_t cores_per_host = 1;
  Level memory_bytes_per_second;  // Bytes read plus bytes written, one rank.
  // What one of CSC's passes takes, after which the wire is served; see
  // csc/pass_size.h.
  std::optional<Level> pass_seconds;
  std::vector<ProbedPair> pairs;  // At most one of each class.
};

// Returns the pair of this class, or null. `probe` must outlive it.
const ProbedPair* FindPair(const Probe& probe, PairClass pair_class);

// The text of a probe, and its inverse. ParseProbe refuses what ParseProfile
// refuses, with the name of the field. Any thread.
std::string ProbeText(const Probe& probe);
Result<Probe> ParseProbe(std::string_view text);

}  // namespace gradientflow::planner
