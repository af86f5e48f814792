#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gradientflow/buckets/bucket_size.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/collectives/collective.h"

namespace gradientflow {

// Borrowed; outlives the tuner.
struct TunerParts {
  const PoolLayout* layout = nullptr;
  Collective* collective = nullptr;  // Of the host's memory.
  std::size_t wire_element_bytes = 0;
  double share = 1.0;  // Of the pool's elements that are sent.
  ChannelModel channel;
};

// theta from what backward was seen to do. After a few of the first steps all
// ranks take each tensor's latest time over the ranks. That allreduce is sent
// with the step that comes after, before its first bucket: so nobody waits for
// it but who waits for that step's buckets, and ranks may finish the steps of
// several sessions in any order. All ranks go by the outcome from the same step
// on. NOT thread-safe: the baton's holder calls.
class Tuner {
 public:
  explicit Tuner(const TunerParts& parts) : parts_(parts) {}

  // Whether the times of the step that is at its end are wanted.
  bool Wants() const;
  // A step is at its end. `ready_seconds`: by tensor in pool order; looked at
  // if they are wanted.
  void StepDone(std::vector<float> ready_seconds);
  // Before the first bucket of `step`.
  void Send(std::uint64_t step);
  // What Send() has sent is on its way. So no step is at its end.
  bool in_flight() const { return in_flight_; }
  // theta from the next step on, if it is chosen anew.
  std::optional<std::size_t> Take();
  // The steps that follow are counted as those of a new session.
  void Restart();

 private:
  static void OnDone(void* self, std::uint64_t, std::uint32_t,
                     const Status& status);

  const TunerParts parts_;
  std::uint64_t steps_ = 0;  // Done.
  std::vector<float> ready_seconds_;
  bool to_send_ = false;
  bool in_flight_ = false;
  bool arrived_ = false;
};

}  // namespace gradientflow
