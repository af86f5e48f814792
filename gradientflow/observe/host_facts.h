#pragma once

#include <string>
#include <vector>

#include "gradientflow/base/status.h"

// What this machine offers, for reports to people. Keeps nothing.
namespace gradientflow {

struct NetworkInterface {
  std::string name;
  bool loopback = false;
  std::vector<std::string> addresses;  // IPv4, then IPv6; numeric.
};

// Returns the interfaces that are up and have an IPv4 or IPv6 address, in the
// kernel's order.
std::vector<NetworkInterface> ListNetworkInterfaces();

// Returns OK if this process can create, map and write anonymous shared memory,
// else the step that failed and the system's reason.
Status ProbeSharedMemory();

}  // namespace gradientflow
