#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/config/options.h"
#include "gradientflow/planner/profile.h"

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

// Makes a profile of what a model computes (gradientflow/planner/profile.h)
// from its own training steps, and writes it to a file: after a few steps, then
// every minute, and when the session closes. So the file of a job that was
// killed is there, too. It is replaced as a whole, or not at all.
//
// A step of a rank consists of forward (everything since the step before, which
// includes an optimiser that is not the session's, and the part of backward
// before the first gradient), backward (from the first gradient to the call
// that ends the step), the wait in that call, and the session's optimiser. The
// times that a file takes are left out. The first two steps are left out as
// well. Of long runs the last kKept steps count.
//
// With several ranks, each tells the others how long its own work takes and by
// how much that varies: two numbers, which travel with the first bucket of a
// step now and then.
//
// Steps calls the methods, one thread at a time; they cost GradientReady()
// nothing.
class Profiler {
 public:
  // The steps that are kept: 4 bytes of memory per tensor each.
  static constexpr std::size_t kKept = 256;

  // Returns null if the options want no profile, or if there are no gradients;
  // kInvalidArgument with the path and the system's reason if the file cannot
  // be written.
  static Result<std::unique_ptr<Profiler>> Open(const ProfilerArgs& args);
  ~Profiler();  // Writes, if there is anything to write.
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // Room for the times of the step that is ending: when each tensor was ready,
  // in seconds after the first one, in pool order. To be filled before
  // StepEnded().
  std::span<float> ready_seconds() { return ending_; }
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
  // One step, in seconds.
  struct Times {
    float forward = 0;
    float backward = 0;
    float wait = 0;
    float optimizer = 0;
    float own() const { return forward + backward + optimizer; }
    float step() const { return own() + wait; }
  };

  Profiler(const ProfilerArgs& args, std::string path);
  static void OnDone(void* self, std::uint64_t, std::uint32_t,
                     const Status& status);
  bool writes() const { return !path_.empty(); }
  std::size_t kept() const;
  planner::Quartiles Over(float (*of)(const Times&)) const;
  planner::Quartiles OwnWork() const;
  std::optional<double> RankSpread() const;
  planner::Profile Summary() const;
  Status Write();

  const ProfilerArgs args_;
  const int rank_;
  const int size_;
  const std::size_t tensors_;
  const std::string path_;   // Empty if another rank writes.
  std::uint64_t steps_ = 0;  // Number of steps that have ended.
  // A ring of the last kKept steps: a row of times by tensor, and the step's.
  std::vector<float> ready_;
  std::vector<float> ending_;  // Of the step that is ending.
  std::vector<Times> times_;
  std::uint64_t recorded_ = 0;
  bool follows_ = false;  // The step that comes follows one at `end_`,
  Clock::Time end_{};     // plus what else has been measured since.
  Clock::Time written_at_{};
  bool changed_ = false;  // There is more than the file has.
  // By rank: the median of a step's own work, and its spread, in seconds.
  std::vector<double> told_;
  std::vector<double> ranks_;
  bool to_send_ = false;
  bool in_flight_ = false;
};

}  // namespace gradientflow
