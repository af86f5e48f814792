#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/rdma/devices.h"

// Which device, port and addresses a rank uses. Index numbers of addresses mean
// nothing to other hosts, and change when a cable is pulled: they are chosen
// for each pair of ranks, by what the addresses are.
namespace gradientflow {

struct RdmaWishes {
  // As the setting: a comma list of prefixes of "device:port" or of "device",
  // with ^ and =.
  std::string devices;
  // The IP addresses by which peers reach this rank, best first: the port that
  // has one of them is on the way to the peers.
  std::vector<std::string> reached_by;
  // Ranks of one host should use its ports in turn; this rank's number.
  int turn = 0;
  // The most ports to choose.
  int ports = 1;
};

struct RdmaChoice {
  std::string device;
  RdmaPort port;    // Only with GIDs that peers can reach; at most kMostGids.
  std::string why;  // For the log.
};
inline constexpr std::size_t kMostGids = 8;

// Returns the ports to use at the same time, at least one: the best, and those
// that are as good. They are in the order of their addresses, so that the n-th
// ports of two ranks are on one network if each network has a range of its own.
// Returns kUnavailable if no port can be used, with what was seen of each;
// kInvalidArgument if `devices` names none.
Result<std::vector<RdmaChoice>> ChooseRails(
    const std::vector<RdmaDevice>& devices, const RdmaWishes& wishes);

// Returns which of their addresses two ranks use for each other, as places in
// the lists: of the same kind, in the same network if there is one. Both ranks
// choose the same, whichever they are. Returns nothing if none fit.
std::optional<std::pair<std::size_t, std::size_t>> MatchGids(
    const std::vector<RdmaGid>& lower, const std::vector<RdmaGid>& higher);

}  // namespace gradientflow
