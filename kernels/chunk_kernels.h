#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/types.h"

// The kernels of coarse-grained sparse communication (CSC) and of the optimiser
// on a whole pool. One launch handles many chunks or tensors, and reads every
// decision from memory of the device, so that the host never has to wait for
// one. kernels.h has the kernels that work on one run of elements, and the
// rules of rounding, which hold here too. cpu/chunks/*.cc and cuda/chunks/*.cu
// have one file per kernel, of the same name.
//
//   grads, residual ─ residual ─> packed, norms of kept chunks
//   packed (after the wire) ─ unpack ─> grads, norms of sent chunks
//   norms (summed over ranks) ─ top_k ─> slots of the next step
//   grads ─ tile_squares, lars_rates, tile_sgd ─> weights
//
// All pointers are to memory of the table's device; the Args structs themselves
// are in host memory. Offsets and counts are elements, 64 bits wide.
namespace gradientflow::kernels {

// The chunks [first, first + count) of a pool of `elements`, which is cut into
// chunks of `chunk_elements` (at least 1); the last chunk may be short.
struct ChunkRange {
  std::size_t elements;
  std::size_t chunk_elements;
  std::size_t first;
  std::size_t count;
};

// How many chunks so many elements make, of which the last may be short.
constexpr std::size_t ChunkCount(std::size_t elements,
                                 std::size_t chunk_elements) {
  return elements / chunk_elements + (elements % chunk_elements != 0 ? 1 : 0);
}

// Whether the pool has all chunks of the range.
constexpr bool IsAllowed(const ChunkRange& range) {
  if (range.chunk_elements == 0) return false;
  const std::size_t chunks = ChunkCount(range.elements, range.chunk_elements);
  return range.first <= chunks && range.count <= chunks - range.first;
}

// slots[c], for chunk c of the pool, is its place among the chunks that are
// sent (0, 1, ..., rising with c), or kNotSent.
inline constexpr std::uint32_t kNotSent = 0xFFFFFFFFU;

// The pass before the wire (GradientFlow, arXiv 1902.06855, section on CSC,
// Algorithm 1). For every chunk of the range, s = grads[i] + residual[i] (in
// float32), and
//   sent:  packed[(slots[c] - first_slot) * chunk_elements + (i - chunk's
//          begin)] = p = packed_type(scale * s);
//          residual[i] = s - p * (1 / scale) if `type` has 16 bits and that is
//          finite, else 0;  grads and norms[c] stay as they are
//   kept:  residual[i] = keep_factor * s;  if zero_kept, grads[i] = 0;
//          norms[c] = norm_scale * sum |s|
// The sum is in float32, in an order that depends on the number of elements and
// the table only. Only the pool's last chunk may be short, so sent chunks leave
// no gaps in `packed`. REQUIRES: slots of the range's sent chunks are at least
// first_slot.
//
// CPU tables can also leave what is sent in place, like `send` of ResidualArgs:
// packed is then null, and scale is not used. CPU tables skip the residuals
// that `dirty` says are zero, and keep `dirty` up to date.
//
// If `residual` is null, here and in the two structs below, the gradients
// contain it: s = grads[i]. A kept chunk keeps type(keep_factor * s) there, a
// sent one stays as it is, and zero_kept must be false.
struct ChunkResidualArgs {
  ChunkRange range;
  const std::uint32_t* slots;  // For all chunks of the pool.
  void* grads;                 // The pool.
  DType type;                  // A gradient type.
  float* residual;             // As long as the pool.
  void* packed;
  DType packed_type;  // A gradient type.
  std::uint32_t first_slot;
  float scale;
  bool zero_kept;
  float keep_factor;
  float norm_scale;
  float* norms;  // For all chunks of the pool.
  // CPU: dirty[c] is 0 if the whole residual of chunk c is 0. If it is
  // null, that is unknown.
  std::uint8_t* dirty = nullptr;
};

// The pass after the wire: for every SENT chunk of the range,
//   grads[i] = type(scale * packed[...as above...]);
//   norms[c] = norm_scale * sum |grads[i]|
// Kept chunks are not touched, unless marks[c] (of packed_type, for all chunks
// of the pool; may be null) is not finite: then it becomes each of the chunk's
// gradients. `nonfinite` (may be null) is as in kernels.h, for the gradients; a
// norm that overflows shows in top_k. On the CPU `packed`
// may be null: the gradients have been exchanged in place, and only their norms
// are taken.
struct ChunkUnpackArgs {
  ChunkRange range;
  const std::uint32_t* slots;
  void* grads;
  DType type;
  const void* packed;
  DType packed_type;
  std::uint32_t first_slot;
  float norm_scale;
  float* norms;
  std::uint32_t* nonfinite;
  float scale = 1.0F;
  const void* marks = nullptr;
};

// Where a tensor's gradients lie in a pool: elements [begin, end). What lies
// between two tensors is padding.
struct TensorRun {
  std::uint64_t begin;
  std::uint64_t end;
};

// Gives back what a skipped step sent. With finite(v) = v if it is finite, else
// 0, for every chunk of the range
//   sent:  residual[i] = finite(finite(residual[i]) + finite(scale * grads[i]))
//   kept:  residual[i] = finite(residual[i])
// With a residual in the gradients (null), sent chunks become finite(scale *
// grads[i]), and kept ones finite(grads[i]). With `hidden`, all gradients of
// the range then become NaN, and padding stays as it is, which is zero. Does
// nothing if only_if is not null and *only_if == 0, so that a step can be
// skipped without asking the host. REQUIRES: residual is not null if `hidden`
// is not.
struct ChunkRestoreArgs {
  ChunkRange range;
  const std::uint32_t* slots;
  void* grads;  // Only written with `hidden`, or if residual is null.
  DType type;
  float* residual;
  float scale;
  std::uint8_t* dirty = nullptr;  // As in ChunkResidualArgs.
  const std::uint32_t* only_if = nullptr;
  // The pool's tensors, none of them empty, in the order of the pool; may be
  // null.
  const TensorRun* hidden = nullptr;
  std::size_t hidden_count = 0;
};

// residual[i] *= factor, for all chunks of the range. If `residual` is null,
// the same for grads, of type `type`.
struct ChunkRescaleArgs {
  ChunkRange range;
  float* residual;
  float factor;
  const std::uint8_t* dirty = nullptr;  // As in ChunkResidualArgs.
  void* grads = nullptr;
  DType type = DType::kFloat32;
};

// Selects the chunks to send next: those with always[c] != 0 (null: none), and
// of the others those with the largest norms, until there are k in all. Of two
// equal norms the lower chunk wins. A norm that is inf or NaN ranks above all
// finite ones, and all such norms are equal. Writes slots[0, chunks), and
// selected[c] = 1 or 0. Also sets *nonfinite = 1 if any norm is inf or NaN, and
// leaves it alone otherwise. REQUIRES: k <= chunks; at most k chunks are always
// sent; chunks <= 2^31.
struct TopKArgs {
  const float* norms;
  const std::uint8_t* always;
  std::size_t chunks;
  std::size_t k;
  std::uint32_t* slots;
  std::uint8_t* selected;
  void* workspace;  // TopKWorkspaceBytes(chunks), aligned to 16.
  std::uint32_t* nonfinite;
};
std::size_t TopKWorkspaceBytes(std::size_t chunks);

// A run of elements of one tensor that lies in one chunk: the work of one block
// of an optimiser's kernel. The table of all tiles is made once.
struct Tile {
  std::uint64_t pool_begin;    // In the pool.
  std::uint64_t tensor_begin;  // In the tensor.
  std::uint32_t tensor;        // Index of weights[] and rates[].
  std::uint32_t count;         // 1 to kTileElements.
  std::uint32_t chunk;         // Of the pool's; 0 if slots is null.
  std::uint32_t reserved;
};
inline constexpr std::uint32_t kTileElements = 16384;

// For tile t of [0, tiles): weight_squares[t] = sum of the squares of the
// weights; gradient_squares[t] = the same of the gradients, or 0 if the tile's
// chunk was kept back. The order of the sums is that of SumSquaresArgs. If the
// tensor's weights are null, neither is written.
struct TileSquaresArgs {
  const Tile* tiles;
  std::size_t count;
  const std::uint32_t* slots;  // Null: everything was sent.
  float* const* weights;       // By tensor.
  const void* grads;           // The pool.
  DType type;
  double* weight_squares;
  double* gradient_squares;
};

// The learning rates of LARS (You, Gitman, Ginsburg, arXiv 1708.03888). For
// tensor t, with |w|^2 and |g|^2 the sums over its tiles [first_tile[t],
// first_tile[t + 1]) in order:
//   rates[t] = lr * eta * |w| / (grad_scale * |g| + weight_decay * |w| + eps)
// and rates[t] = lr if a norm is 0 or skip[t] != 0. The quotient is taken in
// float64, rounded to float32, then multiplied by lr in float32.
struct LarsRatesArgs {
  const std::uint64_t* first_tile;  // tensors + 1 entries.
  std::size_t tensors;
  const double* weight_squares;
  const double* gradient_squares;
  const std::uint8_t* skip;  // By tensor; null: none.
  float lr;
  float eta;
  float eps;
  float weight_decay;
  float* rates;
  float grad_scale = 1.0F;
};

// Momentum SGD as in SgdArgs of kernels.h, for every tile whose chunk was sent
// and whose tensor's weights are not null; other weights and momenta do not
// change. The rate is rates[tensor], or `lr` if rates is null. Does nothing if
// skip is not null and *skip != 0.
struct TileSgdArgs {
  const Tile* tiles;
  std::size_t count;
  const std::uint32_t* slots;  // Null: everything was sent.
  float* const* weights;       // By tensor.
  float* momentum_buf;         // As long as the pool.
  const void* grads;           // The pool.
  DType type;
  const float* rates;
  float lr;
  float momentum;
  float weight_decay;
  bool nesterov;
  const std::uint32_t* skip;
  float grad_scale = 1.0F;
};

// One implementation over one kind of memory. The calls follow the rules of
// KernelTable: they are asynchronous on `stream`, and return 0, EINVAL or the
// device's error code.
struct ChunkKernelTable {
  const char* name;  // "cpu", "cuda".
  int (*chunk_residual)(const ChunkResidualArgs&, void* stream);
  int (*chunk_unpack)(const ChunkUnpackArgs&, void* stream);
  int (*chunk_restore)(const ChunkRestoreArgs&, void* stream);
  int (*chunk_rescale)(const ChunkRescaleArgs&, void* stream);
  int (*top_k)(const TopKArgs&, void* stream);
  int (*tile_squares)(const TileSquaresArgs&, void* stream);
  int (*lars_rates)(const LarsRatesArgs&, void* stream);
  int (*tile_sgd)(const TileSgdArgs&, void* stream);
};

// Uses the element kernels of CpuKernels(). Never destroyed.
const ChunkKernelTable& CpuChunkKernels();

}  // namespace gradientflow::kernels
