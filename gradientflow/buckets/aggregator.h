#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/collective.h"

namespace gradientflow {

// What a step came to.
struct AggregateResult {
  std::uint64_t buckets = 0;
  std::uint64_t selected_chunks = 0;
  std::uint64_t chunks = 0;
  bool nonfinite = false;
  float gradient_scale =
      1.0F;  // What exchanged gradients are to be divided by.
  Status status;
};

// Turns one rank's gradients into the group's, step after step: the mode of
// the session (dense, sparse; later parameter server, hybrid, elastic).
// NOT thread-safe: the driving thread calls. One per session, owned by it.
class Aggregator {
 public:
  virtual ~Aggregator() = default;

  // The pool is about to be filled for `step`. The result of the step before
  // is gone. REQUIRES Done().
  virtual void Begin(std::uint64_t step, float loss_scale) = 0;

  // Elements [0, written_end) of the pool are written. Grows within a step.
  virtual void Advance(std::size_t written_end) = 0;

  // Does a piece of this rank's own work, some 100 us at most. Returns whether
  // there was any.
  virtual bool Work() = 0;
  // Whether Work() would find something to do now.
  virtual bool HasWork() const = 0;

  // Every element is written, and aggregated.
  virtual bool Done() const = 0;
  virtual const AggregateResult& result() const = 0;

  // What the step exchanges, in pool elements; what an optimiser may update.
  // Valid until the next Begin().
  virtual std::span<const Extent> exchanged() const = 0;
  // One byte per chunk (0 or 1) of what the step exchanges; empty if dense.
  virtual std::span<const std::uint8_t> selection() const = 0;

  // theta, from the next Begin() on.
  virtual void SetBucketBytes(std::size_t bytes) = 0;

  // State to save and restore, between steps: float32 in pool order, and one
  // byte per chunk for the step that comes. Empty when dense. residual() may
  // block while a device's memory is copied; the copy lasts until the next
  // Begin().
  virtual Result<std::span<const float>> residual() = 0;
  virtual std::size_t residual_bytes() const = 0;
  virtual std::span<const std::uint8_t> next_selection() const = 0;
  // kInvalidArgument: why Restore() would refuse these.
  virtual Status CheckState(
      std::uint64_t next_step, std::span<const std::byte> residual,
      std::span<const std::byte> next_selection) const = 0;
  // REQUIRES CheckState(). After an error, a device's, nothing is certain.
  virtual Status Restore(std::uint64_t next_step, float loss_scale,
                         std::span<const std::byte> residual,
                         std::span<const std::byte> next_selection) = 0;

  // For an optimiser on the device: by chunk, where what the last step sent
  // lies (kernels::kNotSent: kept back), in the device's memory. Null: the
  // pool is the host's, or all of it was sent.
  virtual const std::uint32_t* device_slots() const { return nullptr; }
};

}  // namespace gradientflow
