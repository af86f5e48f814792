#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/executor.h"
#include "gradientflow/communicator/completions.h"
#include "gradientflow/communicator/messages.h"
#include "gradientflow/communicator/progress.h"
#include "transports/fabric.h"

namespace gradientflow {

// Borrowed; outlives the calls.
struct CallsParts {
  Fabric* fabric = nullptr;
  Executor* executor = nullptr;
  Messages* messages = nullptr;
  Progress* progress = nullptr;
  Completions* completions = nullptr;
  const Clock* clock = nullptr;
  // Starts a collective on the host's memory or on the device's.
  std::function<void(const CollectiveCall&, Done)> start;
};

// What callers start, and how they wait for it: a call has a ticket until it
// was waited for, or its completion has returned.
// Thread-safe.
class Calls {
 public:
  // Told once how a call ended: by the thread that drives, whichever it is,
  // without the baton.
  using Completion = std::function<void(const Status&)>;

  explicit Calls(CallsParts parts) : parts_(std::move(parts)) {}

  // Starts what `begin` starts in `group`, and gives it a ticket. `begin` runs
  // with the baton held, and may refuse; then no ticket was given, and the
  // completion does not run.
  using Begin = std::function<Status(const CallGroup& group, Done done)>;
  Result<std::uint64_t> Start(GroupId group, Completion completion,
                              const Begin& begin);
  Result<std::uint64_t> StartCollective(const CollectiveCall& call,
                                        Completion completion);
  Result<std::uint64_t> StartSend(GroupId group, int peer, std::uint32_t tag,
                                  ConstBufferView data, Completion completion);
  Result<std::uint64_t> StartRecv(GroupId group, int peer, std::uint32_t tag,
                                  BufferView data, int* source,
                                  Completion completion);

  // See Communicator::Wait().
  Status Wait(std::uint64_t ticket, double seconds);
  // StartCollective() and Wait(), without a ticket.
  Status Run(const CollectiveCall& call);

  Status OpenGroup(GroupId id, const std::vector<int>& ranks);
  Status CloseGroup(GroupId id);
  // OK, or why the job has ended.
  Status Check() const;
  // From here on every call is refused. REQUIRES that the progress thread has
  // stopped.
  void Close();

 private:
  struct Pending {
    bool done = false;
    Status status;
    std::uint64_t ticket = 0;
    Completion completion = {};  // Empty: somebody waits.
    Calls* calls = nullptr;
  };

  // Whether the wait for `ticket` is over; then *status is what it says.
  bool IsOver(std::uint64_t ticket, Status* status);
  static void OnDone(void* pending, std::uint64_t, std::uint32_t,
                     const Status& status);

  const CallsParts parts_;
  // Touched with the baton held.
  std::unordered_map<std::uint64_t, std::unique_ptr<Pending>> pending_;
  std::uint64_t started_ = 0;
  bool closing_ = false;
};

}  // namespace gradientflow
