#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/config/options.h"
#include "gradientflow/session/profiled_steps.h"

namespace gradientflow {

// Borrowed; all outlive the profiler.
struct ProfilerArgs {
  const Options* options = nullptr;  // With the session's rank and size.
  const PoolLayout* layout = nullptr;
  const std::vector<std::string>* names = nullptr;  // By tensor.
  const Clock* clock = nullptr;
  // For the numbers that several ranks tell each other.
  Collective* collective = nullptr;  // For host memory.
  GroupId group = 0;                 // The group of its calls.
};

// Moments of one step on this rank, as the clock has them. On a device that has
// a clock, the first two are the device's, counted back from the end.
struct StepMoments {
  Clock::Time first_ready{};  // The first gradient was there.
  Clock::Time over{};         // The call that ends the step was made, or the
                              // device has come to the end of backward,
  Clock::Time end{};          // and the call returns.
};

// Makes the profile of a session's training steps: it turns moments into the
// times of profiled_steps.h, and takes what ranks tell each other along with
// the first bucket of a step.
//
// A step of a rank consists of forward (everything since the step before, which
// includes an optimiser that is not the session's, and the part of backward
// before the first gradient), backward (from the first gradient to the call
// that ends the step), the wait in that call, and the session's optimiser. The
// times that a file takes are left out.
//
// Steps calls the methods, one thread at a time; they cost GradientReady()
// nothing.
class Profiler {
 public:
  // As ProfiledSteps::Open().
  static Result<std::unique_ptr<Profiler>> Open(const ProfilerArgs& args);
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // Room for the times of the step that is ending, as in ProfiledSteps. To be
  // filled before StepEnded().
  std::span<float> ready_seconds() { return steps_->ready_seconds(); }
  void StepEnded(const StepMoments& moments);
  // The session's optimiser has run since the step ended.
  void OptimizerRan(Clock::Time begin, Clock::Time end);
  // To be called before the first bucket of `step`: sends what the ranks tell
  // each other, if it is due. It is due in the same steps on all ranks.
  void Send(std::uint64_t step);
  // Until what was sent is there, no step can end.
  bool in_flight() const { return in_flight_; }
  // Counts the following steps as those of a new session.
  void Restart();

  // Writes the file if that is due. Does I/O.
  Status WriteIfDue();

 private:
  Profiler(const ProfilerArgs& args, std::unique_ptr<ProfiledSteps> steps)
      : args_(args), steps_(std::move(steps)) {}
  static void OnDone(void* self, std::uint64_t, std::uint32_t,
                     const Status& status);

  const ProfilerArgs args_;
  const std::unique_ptr<ProfiledSteps> steps_;
  bool follows_ = false;  // The step that comes follows one at `end_`,
  Clock::Time end_{};     // plus what else has been measured since.
  bool in_flight_ = false;
};

}  // namespace gradientflow
