#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/collectives/collective.h"

// What a step sends and in which buckets: lazy allreduce (arXiv 1902.06855,
// section on lazy allreduce), for the dense pool and for the selected chunks.
//
// Why is this a plan, and not a decision for each hook? The paper's pseudo-code
// launches whatever contiguous prefix is ready as soon as it exceeds theta. How
// far a launch reaches then depends on the order in which hooks fire. Two ranks
// whose hooks fire in different orders would issue different ranges, which
// never match. Here the rule is applied after each tensor (or selected chunk)
// in pool order. That equals the pseudo-code when hooks fire in generation
// order, and it depends only on sizes, theta and the selection. So every rank
// has the same buckets whatever its hooks do, without negotiation.
namespace gradientflow {

struct Bucket {
  std::vector<Extent> extents;  // In the pool: ascending, never touching.
  std::size_t elements = 0;     // In all extents, with padding; at least 1.
  // All elements of the pool below this must be written before the bucket may
  // be sent. Rises from bucket to bucket.
  std::size_t pool_end = 0;
};

// The arguments of both plans: a bucket closes once it holds strictly more than
// `theta_bytes`, at `element_bytes` on the wire per gradient. With 0 every
// piece closes its bucket; with kInfiniteBytes no bucket closes before the end.
// The rest forms the last bucket. REQUIRES: theta_bytes is not kAutoBytes;
// element_bytes is 1 to 8.

// Returns buckets of whole tensors that together are the pool. A tensor without
// elements belongs to no bucket and makes none. Each bucket is one extent: the
// padding between two of its tensors is sent, since to leave out a few bytes
// would take an extent, and thus a further segment and copy, for each tensor.
// The padding between buckets is left out.
std::vector<Bucket> PlanDense(const PoolLayout& layout, std::size_t theta_bytes,
                              std::size_t element_bytes);

// Returns buckets of whole chunks that together are the selection: one byte, 0
// or 1, for each chunk of `chunk_elements`. The last chunk may be short.
// REQUIRES: `selected` covers `pool_elements` exactly.
struct SparsePlanArgs {
  std::size_t pool_elements = 0;
  std::size_t chunk_elements = 0;
  std::span<const std::uint8_t> selected = {};
};
std::vector<Bucket> PlanSparse(const SparsePlanArgs& args,
                               std::size_t theta_bytes,
                               std::size_t element_bytes);

// Returns all that a plan sends as one list: what an optimiser may update.
std::vector<Extent> ExtentsOf(std::span<const Bucket> buckets);

}  // namespace gradientflow
