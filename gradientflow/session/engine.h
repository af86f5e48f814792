#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/mutex.h"
#include "gradientflow/buckets/aggregator.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/communicator/driver.h"
#include "gradientflow/device/device_sync.h"
#include "gradientflow/observe/recorder.h"
#include "transports/fabric.h"

namespace gradientflow {

// Borrowed; outlives the engine.
struct EngineParts {
  const PoolLayout* layout = nullptr;
  const std::vector<std::string>* names = nullptr;  // The tensors', by tensor.
  Fabric* fabric = nullptr;
  const Driver* driver = nullptr;
  Collective* collective = nullptr;  // The one that the aggregator calls.
  Aggregator* aggregator = nullptr;
  DeviceSync* device = nullptr;  // Null where the pool is in host memory.
  const Clock* clock = nullptr;
  Recorder* recorder = nullptr;
  // Run once per step, before its first bucket, on the driving thread.
  std::function<void()> before_buckets;
  // Run every 100 ms or so while a tensor of the step is marked, likewise.
  std::function<void()> while_in_step;
};

// How communication went, in one step.
struct EngineTimes {
  double backward_seconds = 0;
  double exposed_seconds = 0;
  double hidden_seconds = 0;
};

// From hooks to the aggregator, in one step:
//
//   hooks, any thread      mark a tensor: free -> claimed -> written
//   the driving thread     finds the contiguous prefix of the pool that is
//                          written, and tells the aggregator how far it reaches
//
// Tensors become ready in whatever order. Next in the data path is the
// aggregator (buckets/dense.h, csc/).
//
// Claim(), Publish(), Ready(), Misused() and Missing() may be called by any
// thread, all else by the baton's holder.
class Engine final : public Driver::Client {
 public:
  Engine(const EngineParts& parts, bool overlap);

  // A hook marks a tensor in two halves, and may write to the tensor between
  // them; no step ends while a hook is between them. Wait-free.
  // Claim() takes tensor `i` for the caller; false if it is not to be had
  // (twice in a step, or out of range), which ends the job. Publish(), after a
  // Claim(): it is written. Returns whether the driving thread has something
  // to look at: then Progress::Notify(), as after a Claim() in vain.
  bool Claim(std::size_t i);
  bool Publish(std::size_t i);
  // Both halves; returns as Publish().
  bool Ready(std::size_t i) { return !Claim(i) || Publish(i); }

  // A hook could not do its part: the job ends, and nothing is sent of what is
  // published after it. Then Progress::Notify(). Any thread.
  void Misused(const Status& why) GF_EXCLUDES(misuse_mutex_);

  // How many events a DeviceSync needs for a pool of this layout.
  static std::size_t GroupsOf(const PoolLayout& layout);

  // Names of tensors not ready, at most `limit` of them; and how many.
  std::vector<std::string> Missing(std::size_t limit, std::size_t* count) const;

  // Opens a step for Ready(). REQUIRES that none is open.
  void Begin(std::uint64_t step, float loss_scale);
  // Backward is over; from here the wait for communication is exposed.
  // kFailedPrecondition if a tensor is missing: the step stays as it was.
  Status EndBackward();
  // After EndBackward(): everything is aggregated and all hooks have left, or
  // the job has failed.
  bool StepDone() const;
  // Closes the step.
  EngineTimes End();
  // A step is open, and no tensor of it was marked yet.
  bool untouched() const;
  // When each tensor became ready, seconds after the first, in pool order.
  std::vector<float> ReadySeconds() const;

  // Driver::Client.
  bool Poll() override;
  bool Pending() const override;
  void Tick() override {
    if (open_ && !untouched()) parts_.while_in_step();
  }
  std::string Doing() const override;

 private:
  void AdvancePrefix();
  void AdvanceGroups();
  bool HooksHaveLeft() const;
  bool FailIfMisused() GF_EXCLUDES(misuse_mutex_);
  void MeasureBusy();

  const EngineParts parts_;
  const bool overlap_;
  const std::size_t tensors_;
  // By tensor: how far its hook is in this step; and when it was written.
  std::unique_ptr<std::atomic<std::uint8_t>[]> marks_;
  std::unique_ptr<std::atomic<std::int64_t>[]> ready_at_;
  // Tensors are grouped by a few hundred kB of pool: only the last of a group
  // wakes the progress thread. What a hook does last to a step is to count
  // itself down, and for the last of a group to record it.
  std::vector<std::uint32_t> group_of_;  // By tensor.
  std::vector<std::uint32_t> group_size_;
  std::unique_ptr<std::atomic<std::uint32_t>[]> group_left_;
  std::vector<std::size_t> group_end_;  // In pool elements.
  // With a device: the group's event is recorded.
  std::unique_ptr<std::atomic<std::uint8_t>[]> group_recorded_;
  std::size_t groups_awaited_ = 0;
  // What hooks did wrong; of the first, for good.
  std::atomic<bool> misused_{false};
  Mutex misuse_mutex_;
  Status misuse_ GF_GUARDED_BY(misuse_mutex_);

  bool open_ = false;
  std::atomic<bool> backward_over_{false};  // Hooks read it.
  std::uint64_t step_ = 0;
  std::size_t prefix_ = 0;  // Tensors in pool order that are ready.
  Clock::Time over_at_{};
  Clock::Time busy_since_{};
  Clock::Time busy_{};
};

}  // namespace gradientflow
