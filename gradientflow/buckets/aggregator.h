#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/collective.h"

namespace gradientflow {

class Event;  // device/device.h

// The result of a step.
struct AggregateResult {
  std::uint64_t buckets = 0;
  std::uint64_t selected_chunks = 0;
  std::uint64_t chunks = 0;
  bool nonfinite = false;
  float gradient_scale = 1.0F;  // Divide exchanged gradients by this.
  Status status;
};

// Turns one rank's gradients into those of the group, step after step. There is
// one implementation for each mode of a session: dense and sparse. NOT
// thread-safe: called by the driving thread. The session owns one.
class Aggregator {
 public:
  virtual ~Aggregator() = default;

  // The pool is about to be filled for `step`. Discards the result of the
  // previous step. REQUIRES Done().
  virtual void Begin(std::uint64_t step, float loss_scale) = 0;

  // Elements [0, written_end) of the pool are written. Only grows within a
  // step.
  virtual void Advance(std::size_t written_end) = 0;

  // Does a piece of this rank's own work, which takes about 100 us at most.
  // Returns whether there was any.
  virtual bool Work() = 0;
  // Returns whether Work() would find something to do.
  virtual bool HasWork() const = 0;

  // Returns whether every element is written and aggregated.
  virtual bool Done() const = 0;
  // Returns whether all work of the step has been submitted, or it is Done().
  // If it is not Done(), end() is the event of a device after all of that work,
  // Work() looks at it now and then, and the step's result is not known yet.
  virtual bool Submitted() const { return Done(); }
  // Null if steps are Done() when they are Submitted().
  virtual const Event* end() const { return nullptr; }
  virtual const AggregateResult& result() const = 0;

  // What the step exchanges, in pool elements: what an optimiser may update.
  // Valid until the next Begin().
  virtual std::span<const Extent> exchanged() const = 0;
  // What the step exchanges, as one byte per chunk (0 or 1); empty if dense.
  virtual std::span<const std::uint8_t> selection() const = 0;

  // Sets theta from the next Begin() on.
  virtual void SetBucketBytes(std::size_t bytes) = 0;

  // For gradients that backward adds to: zeroes what the last step sent, and
  // leaves what is kept back. Between steps.
  virtual Status ZeroSent() = 0;

  // The state to save between steps: the residual (float32, in pool order) and
  // the selection of the next step (one byte per chunk). Both are empty when
  // dense. residual() may block while a device's memory is copied; the copy is
  // valid until the next Begin().
  virtual Result<std::span<const float>> residual() = 0;
  virtual std::size_t residual_bytes() const = 0;
  virtual std::span<const std::uint8_t> next_selection() const = 0;
  // Returns kInvalidArgument with the reason if Restore() would refuse these.
  virtual Status CheckState(
      std::uint64_t next_step, std::span<const std::byte> residual,
      std::span<const std::byte> next_selection) const = 0;
  // REQUIRES that CheckState() returns OK. After an error, which is a device's,
  // the state is unspecified.
  virtual Status Restore(std::uint64_t next_step, float loss_scale,
                         std::span<const std::byte> residual,
                         std::span<const std::byte> next_selection) = 0;

  // For an optimiser on the device: by chunk, the slot where the chunk lies
  // that the last step sent, or kernels::kNotSent if it was kept back. In the
  // device's memory. Null if the pool is in host memory or all of it was sent.
  virtual const std::uint32_t* device_slots() const { return nullptr; }
  // Also for such an optimiser: whether it must skip the last step that was
  // submitted (0: no). In the device's memory; null if only result() says it.
  virtual const std::uint32_t* device_nonfinite() const { return nullptr; }
};

}  // namespace gradientflow
