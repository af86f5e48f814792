#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "transports/arena.h"
#include "transports/link.h"
#include "transports/poller.h"

// What a transport is to those who join ranks: a row (TransportKind) that opens
// an Endpoint, whose address goes to the other ranks and which then connects to
// theirs. All that comes after is the Link's.
namespace gradientflow {

// What the settings of the same names say. Every transport gets all of them and
// takes what is its own.
struct TransportOptions {
  // shm: address space that this rank reserves, and FIFO per peer and
  // direction.
  std::size_t arena_bytes = std::size_t{64} << 30;
  std::size_t fifo_bytes = std::size_t{1} << 20;
  // tcp: connections per peer that carry data, beside one for control messages.
  // 0: data goes with those. The same on all ranks.
  int connections = 1;
  // Interfaces to be reached at: a comma list of prefixes; a leading ^
  // excludes them, a leading = asks for whole names. Empty: all that are up,
  // loopback only if there is nothing else.
  std::string socket_ifname = {};
  int ip_version = 0;  // 4, 6, or 0 for both.
  // Send and receive buffer of each connection; 0: the kernel's own tuning.
  std::size_t socket_buffer_bytes = 0;
};

struct ConnectArgs {
  int rank = 0;
  int size = 1;
  // Endpoint::address() of each rank to link to, by rank; empty: no link to
  // that one. This rank's own entry is not looked at.
  std::vector<std::string> addresses = {};
  std::uint64_t session_key = 0;  // The same in one job, another in others.
  Clock::Time deadline{};         // Of Connect(), by `clock`.
  const Clock* clock = nullptr;
  Poller* poller = nullptr;      // Outlives the links.
  LinkEvents* events = nullptr;  // Outlives the links.
  // Why this rank cannot go on, if so. Connect() ends with it, after it has
  // told the peers where the transport has a way to.
  Status failed = {};
};

// Where this process can be reached by one transport. NOT thread-safe.
class Endpoint {
 public:
  virtual ~Endpoint() = default;

  // To be published to the peers. Not empty; a line of text without line feeds.
  virtual std::string address() const = 0;

  // Links to all ranks that have an address: result[r]; null for the others
  // and for this rank. Once; blocks until all are there. Strangers (another
  // key, garbage, silence) are dropped and keep nobody waiting.
  // kDeadlineExceeded names the ranks that did not come, kInvalidArgument what
  // does not fit together. The links may outlive the endpoint.
  virtual Result<std::vector<std::unique_ptr<Link>>> Connect(
      const ConnectArgs& args) = 0;

  // The memory that this rank shares with those it links to: usable at once,
  // the peers' after Connect(). Lives as long as the endpoint. Null if links
  // of this kind share none.
  virtual SharedArena* arena() { return nullptr; }
};

// kInvalidArgument unless `args` names a rank below the size, and an address
// for each rank.
Status ValidateConnect(const ConnectArgs& args);

// One transport. A constant, defined in its folder and listed in
// transports/registry/registry.cc.
struct TransportKind {
  // As settings, cards and reports spell it. Unique; lower case.
  const char* name;
  Result<std::unique_ptr<Endpoint>> (*open)(const TransportOptions& options);
  // Of a transport between processes of one host that share memory: equal
  // exactly in processes that can. Null for those that reach other hosts.
  std::string (*host_id)() = nullptr;
};

}  // namespace gradientflow
