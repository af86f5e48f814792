#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradientflow/base/done.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/nccl/args.h"
#include "gradientflow/nccl/launch_order.h"
#include "gradientflow/nccl/nccl_memory.h"
#include "gradientflow/nccl/queue.h"

namespace gradientflow {

// The queues of all channels: how they begin and end, with all ranks together,
// and the memory that NCCL is told of. NOT thread-safe.
class NcclChannels {
 public:
  using Queues = std::array<std::unique_ptr<NcclQueue>, kChannels>;

  // `args` outlive it.
  NcclChannels(const NcclArgs& args, const CallGroup& group)
      : args_(args),
        group_(group),
        memory_(args.api, args.device, args.logger) {}

  // Blocks until all ranks are connected. After an error some queues may exist,
  // and are to be aborted.
  Status Open();
  // Gives up the communicators in good order. REQUIRES that no call is in
  // flight.
  Status Close();

  NcclQueue& at(Channel channel) const {
    return *queues_[static_cast<std::size_t>(channel)];
  }
  // Those that were made; all of them after Open() has returned OK.
  const Queues& queues() const { return queues_; }
  std::size_t calls() const;
  // Thread-safe.
  NcclMemory& memory() { return memory_; }
  // REQUIRES that Open() has returned OK.
  const LaunchOrder& order() const { return *order_; }

  // See NcclCollective.
  Status Register(void* data, std::size_t bytes);
  void Deregister(const void* data);

  void Abort();
  // True if Abort() was not called, too.
  bool abort_done() const;
  // After Abort(): returns whether the device has finished all work.
  bool Drained();
  // Ends all calls with `why`.
  void EndAll(const Status& why, DoneQueue* ended);
  // Leaves queues behind whose work may never end. Returns whether there were
  // any.
  bool LeaveBehind();

 private:
  Status OpenQueues();
  Status CloseQueues();
  Status ShareIds(std::array<nccl::UniqueId, kChannels>* ids);
  Result<bool> CanHaveWindows();
  Status CheckDevice();
  Status WaitUntil(const std::function<Result<bool>()>& there, double seconds,
                   const std::string& what);

  const NcclArgs& args_;
  const CallGroup group_;
  NcclMemory memory_;
  std::shared_ptr<LaunchOrder> order_;  // From Open() on. Outlives the queues.
  Queues queues_;
  struct Registered {
    const void* data;
    void* handle;
  };
  std::vector<Registered> registered_[kChannels];
};

}  // namespace gradientflow
