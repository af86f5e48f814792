#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/executor.h"
#include "gradientflow/communicator/completions.h"
#include "gradientflow/communicator/messages.h"
#include "gradientflow/communicator/progress.h"
#include "transports/fabric.h"

namespace gradientflow {

// All are borrowed, and outlive the calls.
struct CallsArgs {
  Fabric* fabric = nullptr;
  Executor* executor = nullptr;
  Messages* messages = nullptr;
  Progress* progress = nullptr;
  Completions* completions = nullptr;
  const Clock* clock = nullptr;
  // Starts a collective on the memory of the host or of the device, or refuses
  // it.
  std::function<Status(const CollectiveCall&, Done)> start;
};

// The calls that users start, and how they wait for them. A call has a ticket
// until it was waited for, or until its completion has returned. Thread-safe.
class Calls {
 public:
  // Runs once with the status of a call that has ended, without the baton, on
  // whichever thread drives.
  using Completion = std::function<void(const Status&)>;

  explicit Calls(CallsArgs args) : args_(std::move(args)) {}

  // Runs `begin`, which starts a call in `group`, and gives that call a ticket.
  // `begin` runs with the baton held. If it refuses, there is no ticket and the
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
  // A start and Wait() in one, without a ticket.
  Status Run(const CollectiveCall& call);
  Status Send(GroupId group, int peer, std::uint32_t tag, ConstBufferView data);
  Status Recv(GroupId group, int peer, std::uint32_t tag, BufferView data);

  Status OpenGroup(GroupId id, const std::vector<int>& ranks);
  Status CloseGroup(GroupId id);
  // Returns OK, or why the job has ended.
  Status Check() const;
  // Refuses every new call from here on. REQUIRES that the progress thread has
  // stopped.
  void Close();

 private:
  struct Pending {
    bool done = false;
    Status status;
    std::uint64_t ticket = 0;
    Completion completion = {};  // Empty if a thread waits.
    Calls* calls = nullptr;
  };

  // Starts a call with `begin`, a Begin, and drives until it has ended.
  template <typename B>
  Status RunHere(GroupId group, const B& begin);
  // Returns null, and the reason in *why, if the group is not open. REQUIRES
  // the baton.
  const CallGroup* Find(GroupId group, Status* why) const;
  // Returns whether the wait for `ticket` is over, and its result in *status.
  bool IsOver(std::uint64_t ticket, Status* status);
  static void OnDone(void* pending, std::uint64_t, std::uint32_t,
                     const Status& status);

  const CallsArgs args_;
  // Guarded by the baton.
  std::unordered_map<std::uint64_t, std::unique_ptr<Pending>> pending_;
  std::uint64_t started_ = 0;
  bool closing_ = false;
};

}  // namespace gradientflow
