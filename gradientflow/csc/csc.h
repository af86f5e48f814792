#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/status.h"
#include "gradientflow/csc/chunk_selector.h"
#include "gradientflow/csc/memory.h"

// The rules of coarse-grained sparse communication (CSC; Sun et al., arXiv
// 1902.06855, section on CSC and Algorithm 1). They are the same for every
// memory and for every caller: a session (sparse.h), or a framework that
// exchanges by itself (integrations/c/csc.cc).
//
//   gradients ─ Pack() ──┬─ sent chunks ─ allreduce ─ Unpack() ─ gradients
//                 │      └─ kept chunks ─ residual ─ added by the next Pack()
//                 └─ norms of kept ─┬─ norms of sent ─ from Unpack()
//                    allreduce of the norms ─ ChunkSelector ─ the next step
//
// If a step has an infinity or a NaN anywhere, the weights must not be updated.
// Skip() then returns what was sent to the residual.
namespace gradientflow {

struct CscOptions {
  ChunkSelectorOptions selection;
  bool zero_kept = false;     // Kept gradients become 0 in place.
  float keep_factor = 1;      // Decay of what is kept back.
  bool in_gradients = false;  // A session's residual is in the pool itself.
  // The factor that turns an exchanged value into a mean: 1 if the exchange
  // takes means, 1 / ranks if it takes sums.
  float share = 1;
};

// Gradients that lie one after another in one memory, cut into chunks of
// `selection.chunk_elements`; the last chunk may be short. All pointers are
// borrowed and point into memory of the kind `memory`. Arrays are by element or
// by chunk of the region.
struct CscRegion {
  CscMemory* memory = nullptr;
  std::size_t elements = 0;
  void* grads = nullptr;
  DType type = DType::kFloat32;
  // If it is null, the gradients contain the residual: backward adds to them,
  // Pack() leaves there what is kept back, and a chunk that was sent has to be
  // zeroed (ZeroSent()) before it is added to again.
  float* residual = nullptr;
  const std::uint32_t* slots = nullptr;  // The selection, for the kernels.
  float* norms = nullptr;
  // In the host's memory, whatever `memory` is: dirty[c] is 0 if nothing is
  // kept back in chunk c. On the host the kernels keep it up to date, elsewhere
  // NoteKept() does. May be null if the residual is not in the gradients.
  std::uint8_t* dirty = nullptr;
  // The chunks to be sent, by slot, in type `wire` and multiplied by
  // `packed_scale`. Null if they are exchanged where they are.
  void* packed = nullptr;
  DType wire = DType::kFloat32;
  float packed_scale = 1;
  // A mark per chunk, in type `wire`, for exchanges in which ranks learn of
  // kept gradients in no other way; null: there are none. Pack() writes 0, or
  // NaN if the chunk's norm is not finite. The exchange takes a mean, and a
  // mean with a NaN is NaN. So Unpack() makes a chunk NaN on all ranks if any
  // rank kept it back with such a norm.
  void* marks = nullptr;
  std::uint32_t first_slot = 0;        // The one at the beginning of `packed`.
  std::uint32_t* nonfinite = nullptr;  // Unpack() sets it to 1; may be null.
  // The tensors of the region, without padding (kernels::ChunkRestoreArgs),
  // whose gradients Skip() makes NaN. Null: it leaves them.
  const kernels::TensorRun* hidden = nullptr;
  std::size_t hidden_count = 0;
};

// The factors of a step's passes. They change with the loss scale.
struct CscFactors {
  float kept_norm = 1;  // Norms are taken without the loss scale,
  float sent_norm = 1;  // and those of sums count a rank's share.
  float unpack = 1;     // From a 16-bit wire to gradients.
  float give_back = 1;  // From exchanged gradients to residuals.
};

// The passes over regions. Calls for different regions may run on different
// threads at the same time, except for SetScale(). Errors are those of the
// kernels. If the memory has workers, they share the chunks of a pass; a chunk
// is always one kernel call, so the bits do not depend on them. Chunks are then
// exchanged where they are (`packed` is null).
class Csc {
 public:
  explicit Csc(const CscOptions& config, float loss_scale = 1)
      : config_(config), loss_scale_(loss_scale) {
    SetScale(loss_scale, loss_scale);
  }

  const CscOptions& config() const { return config_; }
  float loss_scale() const { return loss_scale_; }

  // Says that the gradients of the coming steps are multiplied by `loss_scale`,
  // and that an exchange leaves `left_scaled` times the true gradient in
  // memory. Returns the factor by which Rescale() must multiply the residuals,
  // which are in units of the scaled gradients.
  float SetScale(float loss_scale, float left_scaled);
  Status Rescale(const CscRegion& region, float factor) const;

  // Before the exchange: adds the residual to the chunks [first, first +
  // count). A selected chunk is made ready to be sent. For any other chunk the
  // sum, times keep_factor, becomes the residual, and its norm is taken.
  Status Pack(const CscRegion& region, std::size_t first,
              std::size_t count) const;
  // The same for any chunks, in host memory.
  Status Pack(const CscRegion& region,
              std::span<const std::size_t> chunks) const;
  // After the exchange: for those of the chunks [first, first + count) that
  // were sent, writes the result to the gradients and takes the norms.
  Status Unpack(const CscRegion& region, std::size_t first,
                std::size_t count) const;
  // The same for any chunks, in host memory.
  Status Unpack(const CscRegion& region,
                std::span<const std::size_t> chunks) const;
  // The step is skipped: what was sent and is finite goes back to the residual,
  // an equal part on each rank, so that it is sent again. Elements of the
  // residual that are not finite become 0; otherwise they would stay for ever.
  // Gradients become NaN if the region says so (`hidden`).
  // `only_if`, unless it is null, points into memory of that kind: the skip
  // then has an effect only if *only_if is not 0 when it runs.
  Status Skip(const CscRegion& region,
              const std::uint32_t* only_if = nullptr) const;

  // For a residual in the gradients.
  // Says which chunks a step has sent (a byte for each of them, 0 or 1), and
  // whether it was skipped. To be called at the end of each step; has no effect
  // in host memory.
  static void NoteKept(const CscRegion& region,
                       std::span<const std::uint8_t> sent, bool skipped);
  // Zeroes the chunks in which nothing is kept back: those that were sent,
  // unless the step was skipped.
  Status ZeroSent(const CscRegion& region) const;
  // Copies what is kept back from the gradients into float32 of the host's
  // memory, and back. Between ZeroSent() and Pack(), backward must not have
  // begun.
  Status ReadKept(const CscRegion& region, float* residual) const;
  Status WriteKept(const CscRegion& region, const float* residual) const;

 private:
  // Some chunks, all of which are dirty or all of which are not.
  struct Part {
    kernels::ChunkRange range;
    bool dirty;
    std::byte* grads;
    std::size_t begin;  // In elements.
    std::size_t count;
  };
  using PartFunction = std::function<Status(const Part&)>;
  Status ForParts(const CscRegion& region, const PartFunction& function) const;
  kernels::ChunkRange Range(const CscRegion& region, std::size_t first,
                            std::size_t count) const {
    return {region.elements, config_.selection.chunk_elements, first, count};
  }
  kernels::ChunkRange Whole(const CscRegion& region) const;

  CscOptions config_;
  CscFactors factors_;
  float loss_scale_;
};

// Brings region.dirty up to date with the residual, which is in the host's
// memory.
void FindDirty(const CscRegion& region, const float* residual,
               std::size_t chunk_elements);

}  // namespace gradientflow
