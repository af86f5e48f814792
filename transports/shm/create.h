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
#include "transports/shm/shm_options.h"

namespace gradientflow {

struct ShmConnectArgs {
  int rank = 0;
  int size = 1;
  // ShmHost::address() of each rank of this host, by rank; empty: a rank of
  // another host. This rank's own entry is not looked at.
  std::vector<std::string> addresses;
  std::uint64_t session_key = 0;  // Alike in one job, unlike in others.
  Clock::Time deadline{};         // Of Connect(), by `clock`.
  const Clock* clock = nullptr;
  Poller* poller = nullptr;      // Outlives the links.
  LinkEvents* events = nullptr;  // Outlives the links.
  // Why this rank cannot go on, if so: its peers are told, and that is all.
  Status failed = {};
};

// This process's place among those of its host that share memory: its arena,
// and where to reach it. Nothing of it has a name in a file system; all goes
// with the last process, however that dies. NOT thread-safe.
class ShmHost {
 public:
  // kResourceExhausted names the limit met.
  static Result<std::unique_ptr<ShmHost>> Create(const ShmOptions& options);
  ~ShmHost();
  ShmHost(const ShmHost&) = delete;
  ShmHost& operator=(const ShmHost&) = delete;

  // Where peers reach this one: to be published to those of equal HostId().
  const std::string& address() const;

  // Equal exactly in processes that can share: same kernel, network namespace,
  // user namespace and user.
  static std::string HostId();

  // Links to all ranks that have an address: result[r]; null for the others
  // and for this rank. Once; blocks until all are there. Every pair: the
  // higher rank connects. Drops strangers (another user, session or size).
  // kDeadlineExceeded names the ranks that did not come, kUnavailable one that
  // refused. Any other error is the same on all of them, at once: it names the
  // rank that has it. The links may outlive the host.
  Result<std::vector<std::unique_ptr<Link>>> Connect(
      const ShmConnectArgs& args);

  // Usable at once; members() and peers' memory after Connect().
  SharedArena& arena();

 private:
  struct State;
  explicit ShmHost(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

}  // namespace gradientflow
