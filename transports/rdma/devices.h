#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/rdma/verbs_api.h"

// What the RDMA devices of this machine are and can do.
namespace gradientflow {

// One of the addresses of a port. A port has several, and only two of the same
// kind and network reach each other.
struct RdmaGid {
  int index = 0;
  ibv_gid_type type = IBV_GID_TYPE_IB;
  std::array<std::uint8_t, 16> bytes = {};
  unsigned interface = 0;  // Index of its network interface; 0 if it has none.

  // An IPv4 address within an IPv6 one, as RoCE has them.
  bool is_ipv4() const;
  // fe80::/10: over Ethernet, other hosts reach it by accident only.
  bool is_link_local() const;
  // "10.0.0.2", or as IPv6 addresses are written.
  std::string ToString() const;
};

// "IB", "RoCE v1" or "RoCE v2".
const char* Name(ibv_gid_type type);

// Room for each placed message, and for all that is written from a slot.
inline constexpr std::size_t kLeastMessageBytes = std::size_t{2} << 20;

struct RdmaPort {
  int number = 1;
  bool active = false;
  std::string state;      // As the standard calls it: "active", "down", ...
  bool ethernet = false;  // Otherwise InfiniBand.
  int mtu = 0;            // In bytes.
  double gbps = 0;        // 0 if the port does not say.
  std::uint16_t lid = 0;
  // What the port writes at once. At least kLeastMessageBytes, or it is not
  // used.
  std::size_t max_message_bytes = std::size_t{1} << 30;
  std::vector<RdmaGid> gids;
};

struct RdmaDevice {
  std::string name;             // "mlx5_0"
  std::string problem;          // Why it cannot be used; empty if it can.
  std::vector<RdmaPort> ports;  // None if there is a problem.
  // Whether the memory of a GPU can be registered by its dma-buf; if not, why.
  bool dma_buf = false;
  std::string no_dma_buf;
};

// Returns all devices, in the library's order, after opening each for a moment.
// One that cannot be opened or asked is in the list, with its problem. Errors:
// kUnavailable if the kernel has no RDMA, with what it said.
Result<std::vector<RdmaDevice>> ListRdmaDevices(const VerbsApi& verbs);

// What may be locked in memory, as registering memory does: bytes, or SIZE_MAX
// if there is no limit.
std::size_t MemlockLimit();
// What to append to the text of an error that the limit may be the reason of;
// empty if there is none.
std::string MemlockRemedy();

// Returns what RDMA is like on this machine in some lines of text, each but the
// first indented by `indent`: devices, ports, GIDs and limits, or what is
// missing, and what to do about it.
std::string RdmaText(const std::string& indent);

}  // namespace gradientflow
