#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "transports/link.h"
#include "transports/poller.h"

// Links to other processes over TCP. All that is public of this folder.
namespace gradientflow {

struct TcpOptions {
  int lanes = 2;  // Connections per peer, 1 to 64; alike on all ranks.
  // Interfaces to be reached at: a comma list of prefixes; a leading ^
  // excludes them, a leading = asks for whole names. Empty: all that are up,
  // loopback only if there is nothing else.
  std::string socket_ifname;
  int family = 0;  // 4, 6, or 0 for both.
  // Send and receive buffer of each connection; 0: the kernel's own tuning.
  std::size_t socket_buffer_bytes = 0;
};

struct TcpConnectArgs {
  int rank = 0;
  int size = 1;
  // TcpListener::address() of each rank; empty: no TCP link to that one. This
  // rank's own entry is not looked at.
  std::vector<std::string> addresses;
  std::uint64_t session_key = 0;  // Alike in one job, unlike in others.
  Clock::Time deadline{};         // Of Connect(), by `clock`.
  const Clock* clock = nullptr;
  Poller* poller = nullptr;      // Outlives the links.
  LinkEvents* events = nullptr;  // Outlives the links.
};

// Where this process can be reached. NOT thread-safe.
class TcpListener {
 public:
  static Result<std::unique_ptr<TcpListener>> Listen(const TcpOptions& options);
  ~TcpListener();
  TcpListener(const TcpListener&) = delete;
  TcpListener& operator=(const TcpListener&) = delete;

  // All addresses, best first, to be published to the peers:
  // "10.0.0.2:4321,[fd00::2]:4322".
  std::string address() const;

  // Links to all ranks that have an address: result[r]; null for the others
  // and for this rank. Once; blocks until all are there, and listens no more
  // then. Of every pair the higher rank connects. Strangers (another key,
  // garbage, silence) are dropped and keep nobody waiting. kDeadlineExceeded
  // names the ranks that are missing and their addresses, kInvalidArgument one
  // with another number of lanes.
  Result<std::vector<std::unique_ptr<Link>>> Connect(
      const TcpConnectArgs& args);

 private:
  struct State;
  explicit TcpListener(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

}  // namespace gradientflow
