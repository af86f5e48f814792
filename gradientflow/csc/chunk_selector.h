#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/collectives/collective.h"

namespace gradientflow {

// The slots (kernels/chunk_kernels.h) of chunks of which `selected` (0 or 1,
// one per chunk) are sent. Returns how many these are.
std::size_t FillSlots(std::span<const std::uint8_t> selected,
                      std::uint32_t* slots);

struct ChunkSelectorConfig {
  std::size_t pool_elements = 0;
  std::size_t chunk_elements = 32000;
  double sparsity = 0;             // Final share of chunks kept back, [0, 1).
  std::uint64_t warmup_steps = 0;  // Sparsity rises linearly over these.
  // Ids of chunks that are sent in every step; see ChunksTouching().
  std::vector<std::size_t> always_dense = {};
};

// The chunks that hold an element of a tensor marked in `tensors` (by forward
// index): ascending, without repeats. An input of ChunkSelectorConfig.
// REQUIRES: tensors.size() == layout.tensors(), chunk_elements > 0.
std::vector<std::size_t> ChunksTouching(const PoolLayout& layout,
                                        const std::vector<bool>& tensors,
                                        std::size_t chunk_elements);

// Which chunks of the pool a step exchanges: coarse-grained sparse
// communication (Sun et al., "Optimizing Network Performance for Distributed
// DNN Training on GPU Clusters: ImageNet/AlexNet Training in 1.5 Minutes",
// arXiv 1902.06855, section on coarse-grained sparse communication).
//
// The pool is cut into equal chunks across tensor borders; the last may be
// short. At the end of step t-1 the ranks allreduce the L1 norms of all
// chunks, and the
//   k(t) = clamp(round((1 - sparsity(t)) * chunks), 1, chunks)
// largest are exchanged in step t, where
//   sparsity(t) = final * min(1, t / warmup)
// (without warm-up: final from step 1 on). Ties go to the lower id. Step 0
// exchanges all. A total order decides, so equal sums select equally on every
// rank. k depends on nothing but the step: packed sizes are known beforehand.
//
// A norm that is inf or NaN counts as larger than any finite one. The step it
// came from is skipped in any case; what matters is what it left behind. A
// residual that took in an inf is cleared when its chunk is sent, so sending
// it at once heals it, for the price of one more skipped step; ranking it low
// would keep the chunk, and its inf, back for ever.
//
// Pure: no clock, no I/O. NOT thread-safe.
class ChunkSelector {
 public:
  // Starts at step 0: everything selected. kInvalidArgument names the field.
  static Result<ChunkSelector> Create(const ChunkSelectorConfig& config);

  std::size_t chunks() const { return selected_.size(); }
  // Chunk `c`'s elements of the pool. REQUIRES: c < chunks().
  Extent chunk(std::size_t c) const;

  // How many chunks step `step` exchanges: k(t), or the always-dense chunks
  // where they are more.
  std::size_t CountAt(std::uint64_t step) const;

  // Chooses for `step`, the one that comes. `norm_sums`: each chunk's L1 norm
  // summed over the ranks, bit-identical on all of them. Always-dense chunks
  // are in and count within k. O(chunks), allocates nothing.
  // kInvalidArgument when there is not one norm per chunk.
  Status Select(std::uint64_t step, std::span<const float> norm_sums);

  // One byte per chunk, 0 or 1. Valid as long as the selector.
  const std::vector<std::uint8_t>& selected() const { return selected_; }
  std::size_t selected_count() const { return selected_count_; }
  // The same as the slots that kernels/chunk_kernels.h describes.
  const std::vector<std::uint32_t>& slots() const { return slots_; }
  // One byte per chunk, 1 if it is always sent.
  const std::vector<std::uint8_t>& always_dense() const {
    return always_dense_;
  }

  // kInvalidArgument: `selected` cannot be this selector's for `step`.
  Status Check(std::uint64_t step,
               std::span<const std::uint8_t> selected) const;
  // Puts back a selected() that was saved before `step`. What Check() refuses
  // changes nothing.
  Status Restore(std::uint64_t step, std::span<const std::uint8_t> selected);

 private:
  explicit ChunkSelector(const ChunkSelectorConfig& config);

  ChunkSelectorConfig config_;
  std::vector<std::uint8_t> always_dense_;  // By chunk.
  std::size_t always_dense_count_ = 0;
  std::vector<std::uint8_t> selected_;
  std::size_t selected_count_;
  std::vector<std::uint32_t> slots_;
  std::vector<std::uint8_t> workspace_;  // Of the kernel that selects.
};

}  // namespace gradientflow
