#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gradientflow/buckets/bucket_size.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/collectives/collective.h"

namespace gradientflow {

// All are borrowed, and outlive the tuner.
struct TunerArgs {
  const PoolLayout* layout = nullptr;
  Collective* collective = nullptr;  // For host memory.
  GroupId group = 0;                 // The group of its calls.
  std::size_t wire_element_bytes = 0;
  double share = 1.0;  // Part of the pool's elements that is sent.
  CallCost cost;
};

// Chooses theta from measured backward passes. After a few of the first steps,
// the ranks take the latest time of each tensor over all ranks. That allreduce
// is sent with the following step, before its first bucket. So only ranks that
// wait for the buckets of that step wait for it, and ranks may finish the steps
// of several sessions in any order. All ranks use the result from the same step
// on.
// NOT thread-safe: called by the holder of the baton.
class Tuner {
 public:
  explicit Tuner(const TunerArgs& args) : args_(args) {}

  // Returns whether the times of the step that is ending are wanted.
  bool Wants() const;
  // A step has ended. `ready_seconds` are by tensor, in pool order. They are
  // used only if they are wanted.
  void StepDone(std::vector<float> ready_seconds);
  // To be called before the first bucket of `step`.
  void Send(std::uint64_t step);
  // Returns whether Send()'s allreduce is in flight. Until it ends, no step can
  // end.
  bool in_flight() const { return in_flight_; }
  // Returns theta from the next step on, if it has been chosen anew.
  std::optional<std::size_t> Take();
  // Counts the following steps as those of a new session.
  void Restart();

 private:
  static void OnDone(void* self, std::uint64_t, std::uint32_t,
                     const Status& status);

  const TunerArgs args_;
  std::uint64_t steps_ = 0;  // Number of finished steps.
  std::vector<float> ready_seconds_;
  bool to_send_ = false;
  bool in_flight_ = false;
  bool arrived_ = false;
};

}  // namespace gradientflow
