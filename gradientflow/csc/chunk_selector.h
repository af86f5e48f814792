#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/collective.h"

namespace gradientflow {

// Fills in the slots (kernels/chunk_kernels.h) of all chunks, given which of
// them are sent: `selected` has one byte, 0 or 1, per chunk. Returns how many
// are sent.
std::size_t FillSlots(std::span<const std::uint8_t> selected,
                      std::uint32_t* slots);

struct ChunkSelectorOptions {
  std::size_t pool_elements = 0;
  std::size_t chunk_elements = 32000;
  double sparsity = 0;             // Final share of chunks kept back, [0, 1).
  std::uint64_t warmup_steps = 0;  // Sparsity rises linearly over these.
  // One byte per chunk: 1 if it is sent in every step; see ChunksTouching().
  // May be empty if there is no such chunk.
  std::vector<std::uint8_t> always_dense = {};
};

// Returns one byte per chunk of a pool of `elements`: 1 if the chunk holds an
// element of `ranges`, else 0. For ChunkSelectorOptions::always_dense.
// REQUIRES: the ranges lie in the pool, chunk_elements > 0.
std::vector<std::uint8_t> ChunksTouching(std::span<const Extent> ranges,
                                         std::size_t elements,
                                         std::size_t chunk_elements);

// Returns how many chunks are selected. kInvalidArgument unless `selected` has
// a byte for each chunk of `always_dense`, 0 or 1, and 1 where that has 1.
Result<std::size_t> CountSelected(std::span<const std::uint8_t> selected,
                                  std::span<const std::uint8_t> always_dense);

// Which chunks of the pool a step exchanges: coarse-grained sparse
// communication (Sun et al., "Optimizing Network Performance for Distributed
// DNN Training on GPU Clusters: ImageNet/AlexNet Training in 1.5 Minutes",
// arXiv 1902.06855, section on coarse-grained sparse communication).
//
// The pool is cut into equal chunks across tensor borders; the last chunk may
// be short. At the end of step t-1 the ranks allreduce the L1 norms of all
// chunks, and the
//   k(t) = clamp(round((1 - sparsity(t)) * chunks), 1, chunks)
// largest are exchanged in step t, where
//   sparsity(t) = final * min(1, t / warmup)
// (without warm-up: final from step 1 on). Ties go to the lower id. Step 0
// exchanges all chunks. The order is total, so equal sums select the same
// chunks on every rank. k depends only on the step, so packed sizes are known
// beforehand.
//
// A norm that is infinite or NaN counts as larger than any finite norm. The
// step that it came from is skipped in any case; what matters is what it left
// behind. A residual that has taken in an infinity is cleared when its chunk is
// sent. So sending the chunk at once heals it, at the price of one more skipped
// step. A low rank would keep the chunk and its infinity back for ever.
//
// Pure: no clock, no I/O. NOT thread-safe.
class ChunkSelector {
 public:
  // Starts at step 0, where every chunk is selected. kInvalidArgument names the
  // setting that is wrong.
  static Result<ChunkSelector> Create(const ChunkSelectorOptions& config);

  std::size_t chunks() const { return selected_.size(); }
  // The elements of the pool in chunk `c`. REQUIRES: c < chunks().
  Extent chunk(std::size_t c) const;

  // Returns how many chunks step `step` exchanges: k(t), or the number of
  // always-dense chunks if that is larger.
  std::size_t CountAt(std::uint64_t step) const;

  // Chooses the chunks of `step`, which is the next one. `norm_sums` are the L1
  // norms of the chunks, summed over the ranks and bit-identical on all of
  // them. Always-dense chunks are selected and count within k. O(chunks);
  // allocates nothing. Returns kInvalidArgument unless there is one norm per
  // chunk.
  Status Select(std::uint64_t step, std::span<const float> norm_sums);

  // One byte per chunk, 0 or 1. Valid as long as the selector.
  const std::vector<std::uint8_t>& selected() const { return selected_; }
  std::size_t selected_count() const { return selected_count_; }
  // The same selection as slots; see kernels/chunk_kernels.h.
  const std::vector<std::uint32_t>& slots() const { return slots_; }
  // One byte per chunk: 1 if the chunk is always sent.
  const std::vector<std::uint8_t>& always_dense() const {
    return always_dense_;
  }

  // Returns kInvalidArgument if `selected` cannot be this selector's selection
  // for `step`.
  Status Check(std::uint64_t step,
               std::span<const std::uint8_t> selected) const;
  // Restores a selected() that was saved before `step`. Changes nothing if
  // Check() refuses it.
  Status Restore(std::uint64_t step, std::span<const std::uint8_t> selected);

 private:
  explicit ChunkSelector(const ChunkSelectorOptions& config);

  ChunkSelectorOptions config_;
  std::vector<std::uint8_t> always_dense_;  // By chunk.
  std::size_t always_dense_count_ = 0;
  std::vector<std::uint8_t> selected_;
  std::size_t selected_count_;
  std::vector<std::uint32_t> slots_;
  std::vector<std::uint8_t> workspace_;  // For the kernel that selects.
};

}  // namespace gradientflow
