#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/status.h"
#include "gradientflow/buckets/aggregator.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/buckets/step_end.h"
#include "gradientflow/buckets/wire_times.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/communicator/core.h"
#include "gradientflow/config/options.h"
#include "gradientflow/csc/memory.h"
#include "gradientflow/optimizer/optimizer_options.h"
#include "gradientflow/session/handover.h"

namespace gradientflow {

// All pointers are borrowed, and outlive the pool.
struct GradientPoolArgs {
  CommunicatorCore* core = nullptr;
  const Options* options = nullptr;
  const PoolLayout* layout = nullptr;
  std::vector<bool> skip_lars = {};  // By tensor.
};

// Where a session's gradients live and what is done there: in the memory of the
// host or of a device. Chosen once, as the session opens; everything else of a
// session is the same for both.
// NOT thread-safe unless a method says otherwise: called by the holder of the
// baton, or by the thread that has its turn (session/step_state.h).
class GradientPool {
 public:
  static Result<std::unique_ptr<GradientPool>> Create(
      const GradientPoolArgs& args);
  virtual ~GradientPool() = default;

  // All gradients, in the options' pool_dtype. May be called on any thread.
  virtual BufferView view() const = 0;
  // Zeroes bytes of the pool, before any work on them that follows. May be
  // called on any thread.
  virtual Status Zero(const BufferView& part) = 0;

  // Returns OK, or why calls of that group cannot sum the pool's buckets.
  virtual Status CheckGroup(GroupId group) const {
    static_cast<void>(group);
    return Status();
  }
  // The collectives that take buckets of the pool.
  virtual Collective& collective() = 0;
  // Hands what the hooks have written to the collectives.
  virtual Handover& handover() = 0;
  // Sets the stream that gradients are computed on. Has no effect on the host.
  virtual Status SetStream(void* native) {
    static_cast<void>(native);
    return Status();
  }
  // Returns the memory, of the pool's kind, that sparse communication works in.
  // It allocates under the baton, and does not outlive the pool.
  virtual Result<CscMemories> NewCscMemories() = 0;

  // Where dense steps end that are submitted ahead of their results; null if
  // the collective takes no calls ahead.
  virtual StepEnd* end() { return nullptr; }

  // When exchanges of the pool end on the device; null if the host sees that.
  virtual WireTimes* wire_times() { return nullptr; }

  // Updates the weights of group `index` from the gradients that `sent` says
  // were exchanged.
  struct Sent {
    std::span<const Extent> extents;
    // See Aggregator.
    const std::uint32_t* device_slots = nullptr;
    const std::uint32_t* device_nonfinite = nullptr;
    float gradient_scale = 1.0F;
  };
  virtual Status Update(std::size_t index, const OptimizerGroup& group,
                        const Sent& sent) = 0;
  // The optimiser's momentum in pool order, valid until the next update; empty
  // before the first update that uses momentum. May block while a device's
  // memory is copied into `scratch`, which the caller owns.
  virtual Result<std::span<const float>> Momentum(
      std::vector<float>* scratch) = 0;
  virtual std::size_t momentum_bytes() const = 0;
  virtual Status RestoreMomentum(std::span<const std::byte> momentum) = 0;

  // Waits until a device is done with the pool. Returns false if the device may
  // go on using the pool and the aggregator's memory, which then must not be
  // freed.
  virtual bool Close() { return true; }
};

}  // namespace gradientflow
