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
#include "gradientflow/config/options.h"
#include "gradientflow/planner/profile.h"

namespace gradientflow {

// The parts of one step of this rank, in seconds.
struct StepSeconds {
  float forward = 0;   // Since the step before.
  float backward = 0;  // From the first gradient to the last.
  float wait = 0;      // Until all gradients were exchanged.
};

// The steps of which a profile (gradientflow/planner/profile.h) is made, and
// the file that it is written to: after a few steps, then every minute, and
// when this is destroyed. So the file of a job that was killed is there, too.
// It is replaced as a whole, or not at all.
//
// The first two steps are left out. Of long runs the last kKept steps count.
// With several ranks, each learns of the others how long their own work takes
// and by how much that varies: two numbers of each, which whoever makes the
// steps sums over the ranks now and then.
//
// One thread at a time.
class ProfiledSteps {
 public:
  // The steps that are kept: 4 bytes of memory per tensor each.
  static constexpr std::size_t kKept = 256;

  // `options` say which file, which rank of how many, and what the profile says
  // of batch, device and dtype; `names` are by tensor. Only `clock` must
  // outlive the result. Returns null if the options want no profile, or if
  // there are no gradients; kInvalidArgument with the path and the system's
  // reason if the file cannot be written.
  static Result<std::unique_ptr<ProfiledSteps>> Open(
      const Options& options, const PoolLayout& layout,
      const std::vector<std::string>& names, const Clock* clock);
  ~ProfiledSteps();  // Writes, if there is anything to write.
  ProfiledSteps(const ProfiledSteps&) = delete;
  ProfiledSteps& operator=(const ProfiledSteps&) = delete;

  // Room for the times of the step that is ending: when each tensor was ready,
  // in seconds after the first one, in pool order. To be filled before Add().
  std::span<float> ready_seconds() { return ending_; }
  // A step has ended.
  void Add(const StepSeconds& seconds);
  // The same, of a step whose times are not known. It counts for what the ranks
  // do in the same steps.
  void AddUnknown();
  // An optimiser has run since the step ended.
  void OptimizerRan(float seconds);
  // Counts the following steps as those of a new session.
  void Restart();

  // If the ranks have to tell each other their times by now: this rank's, amid
  // zeros for the others', to be summed over all ranks in place; then Told() is
  // called. Empty if not. After the same steps on all ranks, once for each.
  std::span<double> Tell();
  void Told();

  // Writes the file if that is due. Does I/O.
  Status WriteIfDue();

 private:
  // One step, in seconds.
  struct Times {
    StepSeconds seconds;
    float optimizer = 0;
    float own() const { return seconds.forward + seconds.backward + optimizer; }
    float step() const { return own() + seconds.wait; }
  };

  ProfiledSteps(const Options& options, planner::Profile about,
                const Clock* clock, std::string path);
  bool writes() const { return !path_.empty(); }
  std::size_t kept() const;
  void Count();
  planner::Quartiles Over(float (*of)(const Times&)) const;
  planner::Quartiles OwnWork() const;
  std::optional<double> RankSpread() const;
  planner::Profile Summary() const;
  Status Write();

  const int rank_;
  const int size_;
  // What does not depend on the steps, with the tensors in pool order.
  const planner::Profile about_;
  const Clock* const clock_;
  const std::string path_;   // Empty if another rank writes.
  std::uint64_t steps_ = 0;  // Number of steps that have ended.
  // A ring of the last kKept steps: a row of times by tensor, and the step's.
  std::vector<float> ready_;
  std::vector<float> ending_;  // Of the step that is ending.
  std::vector<Times> times_;
  std::uint64_t recorded_ = 0;
  bool has_last_ = false;  // The step that ended last was recorded.
  Clock::Time written_at_{};
  bool changed_ = false;  // There is more than the file has.
  // By rank: the median of a step's own work, and its spread, in seconds.
  std::vector<double> told_;
  std::vector<double> ranks_;
  bool to_tell_ = false;
};

}  // namespace gradientflow
