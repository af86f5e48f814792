#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/mutex.h"
#include "gradientflow/buckets/aggregator.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/buckets/wire_times.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/communicator/driver.h"
#include "gradientflow/observe/recorder.h"
#include "gradientflow/session/engine_times.h"
#include "gradientflow/session/handover.h"
#include "transports/fabric.h"

namespace gradientflow {

// All pointers are borrowed, and outlive the engine.
struct EngineArgs {
  const PoolLayout* layout = nullptr;
  // Names of the tensors, by tensor.
  const std::vector<std::string>* names = nullptr;
  Fabric* fabric = nullptr;
  const Driver* driver = nullptr;
  Collective* collective = nullptr;  // The one that the aggregator calls,
  GroupId group = 0;                 // and the group of its calls.
  Aggregator* aggregator = nullptr;
  Handover* handover = nullptr;  // The pool's.
  // With a device: when the aggregator's exchanges ended on it. Null if the
  // host sees their ends.
  const WireTimes* wire = nullptr;
  const Clock* clock = nullptr;
  Recorder* recorder = nullptr;
  // Runs once per step, before its first bucket, on the driving thread.
  std::function<void()> before_buckets;
  // Takes the result of a step that was left (Engine::Leave()), and begins the
  // next one in the aggregator. Returns false if that must wait. Runs on the
  // driving thread.
  std::function<bool()> take_result;
  // Runs every 100 ms or so on the driving thread, while a tensor of the step
  // is marked or the result of a step that was left is not known.
  std::function<void()> while_in_step;
};

// The way of gradients from the hooks to the aggregator, in one step:
//
//   hooks, any thread      mark a tensor: free -> claimed -> written
//   the driving thread     finds the contiguous prefix of the pool that is
//                          written, and tells the aggregator how far it reaches
//
// Tensors become ready in any order. Next in the data path is the aggregator
// (buckets/dense.h, csc/).
//
// Any thread may call Claim(), Publish(), Misused() and Missing(). Only the
// holder of the baton may call the other methods.
class Engine final : public Driver::Client {
 public:
  Engine(const EngineArgs& args, bool overlap);

  // A hook marks a tensor in two halves and may write to the tensor between
  // them. No step ends while a hook is between the two. Wait-free.
  //
  // Claim() takes tensor `i` for the caller. It returns false if the tensor is
  // out of range or was marked before in this step, which ends the job.
  // Publish() comes after a Claim() and says that the tensor is written. It
  // returns whether the driving thread has something to look at: the caller
  // then calls Progress::Notify(), as it does after a Claim() that failed.
  bool Claim(std::size_t i);
  bool Publish(std::size_t i);

  // Says that a hook could not do its part, for the reason `why`. The job ends,
  // and tensors that are published later are not sent. The caller then calls
  // Progress::Notify(). May be called on any thread.
  void Misused(const Status& why) GF_EXCLUDES(misuse_mutex_);

  // Where the sections of a pool of this layout end, in elements; see
  // Handover.
  static std::vector<std::size_t> SectionEndsOf(const PoolLayout& layout);

  // Returns the names of tensors that are not ready, at most `limit` of them.
  // `*count` is the number of all of them.
  std::vector<std::string> Missing(std::size_t limit, std::size_t* count) const;

  // Opens a step for hooks. REQUIRES that no step is open.
  void Begin(std::uint64_t step, float loss_scale);
  // Says that backward is over: from here on the wait for communication is
  // exposed. Returns kFailedPrecondition, and leaves the step as it was, if a
  // tensor is missing.
  Status EndBackward();
  // After EndBackward(): returns whether everything is aggregated and all hooks
  // have left, or the job has failed.
  bool StepDone() const;
  // Closes the step.
  EngineTimes End();

  // On a device a step may end before its result is known: it is left. After
  // EndBackward(): returns whether all work of the step has been submitted and
  // all hooks have left, or the job has failed.
  bool Submitted() const;
  // Leaves the open step, and opens `step` for hooks. The work of `step` begins
  // when the result of the step that was left is known. The device is asked for
  // that result when the first gradients of `step` are there, after
  // LookForResult(), or after a second, so that errors are found. REQUIRES
  // Submitted() and that the job goes on.
  void Leave(std::uint64_t step);
  // The times of the step that was left. REQUIRES that its result is known and
  // has not been taken.
  EngineTimes LeftTimes() const;
  // Returns whether a step was left whose result has not been taken.
  bool result_open() const { return result_open_; }
  // From now on asks the device for the result until it is known.
  void LookForResult() { wanted_ = true; }
  // Returns whether a step is open and none of its tensors has been marked.
  bool untouched() const;
  // All ranks give the step up: sends the rest of it as it is, so that the
  // calls of all ranks end. They have ended when aggregator->Done(). REQUIRES
  // that no hook runs, and that all ranks do this in the same step.
  void SendTheRest();
  bool given_up() const { return given_up_; }
  bool open() const { return open_; }
  bool backward_over() const { return backward_over_; }
  // Returns when each tensor of the step whose result is taken next became
  // ready, in seconds after the first one, in pool order. On a device that is
  // when the device had written the whole section of the tensor, for which a
  // bucket waits. REQUIRES that the step is done.
  std::vector<float> ReadySeconds() const;
  // The same into `seconds`, which has room for each tensor.
  void ReadySeconds(std::span<float> seconds) const;

  // From Driver::Client.
  bool Poll() override;
  bool Pending() const override;
  void Tick() override;
  std::string Doing() const override;

 private:
  std::size_t ReadableEnd();
  bool HooksHaveLeft() const;
  bool FailIfMisused() GF_EXCLUDES(misuse_mutex_);
  void Open(std::uint64_t step);
  EngineTimes TimesOfHost();
  StepOnDevice OnDevice() const;
  void Measure(EngineTimes* times) const;
  void LookForBackwardEnd();
  bool Failed() const;
  bool MayLook() const;
  bool TakeResult();
  void MeasureBusy();

  const EngineArgs args_;
  const bool overlap_;
  const std::size_t tensors_;
  // By tensor: how far its hook is in this step, and when it was written.
  std::unique_ptr<std::atomic<std::uint8_t>[]> marks_;
  std::unique_ptr<std::atomic<std::int64_t>[]> ready_at_;
  // Neighbouring tensors of a few hundred kB make a section of the pool, and
  // only the last one of a section wakes the progress thread. The last thing a
  // hook does to a step is to count itself down and, as the last of a section,
  // to hand the section over.
  std::vector<std::uint32_t> section_of_;  // By tensor.
  std::vector<std::size_t> section_end_;   // In pool elements.
  std::vector<std::uint32_t> section_size_;
  std::unique_ptr<std::atomic<std::uint32_t>[]> section_left_;
  std::unique_ptr<std::atomic<std::uint8_t>[]> section_handed_over_;
  std::size_t sections_written_ = 0;
  // The first mistake of a hook. It stays for good.
  std::atomic<bool> misused_{false};
  Mutex misuse_mutex_;
  Status misuse_ GF_GUARDED_BY(misuse_mutex_);

  bool open_ = false;
  std::atomic<bool> backward_over_{false};  // Hooks read it.
  bool result_open_ = false;
  bool wanted_ = false;  // See LookForResult().
  bool given_up_ = false;
  Clock::Time left_at_{};
  std::uint64_t step_ = 0;
  std::size_t prefix_ = 0;  // Number of tensors, in pool order, that are ready.
  std::size_t written_end_ = 0;  // Elements of which the aggregator was told.
  Clock::Time over_at_{};
  // With a device whose exchanges the host sees: whether the device has ended
  // backward, as over_at_ then says, and when it was asked.
  bool over_seen_ = false;
  Clock::Time over_looked_at_{};
  EngineTimes left_times_;  // By the host, until the device's are known.
  Clock::Time busy_since_{};
  Clock::Time busy_{};
};

}  // namespace gradientflow
