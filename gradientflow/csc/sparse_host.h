#pragma once

#include <cstddef>
#include <vector>

#include "gradientflow/csc/returning_chunks.h"
#include "gradientflow/csc/sparse.h"

namespace gradientflow {

// Sparse communication of a pool in the host's memory. A pass works on some
// chunks, which threads may share. Chunks to be sent go first, so that the wire
// never waits for kept chunks. They are exchanged where they are: the
// collective walks their extents and converts. The norm of a chunk is taken as
// soon as all of it is back, while it is still in the caches.
class HostSparse final : public SparseAggregator {
 public:
  HostSparse(const AggregatorArgs& args, const CscOptions& config,
             ChunkSelector selector, CscMemories memories);

 private:
  // Chunks to be packed, ascending; the first `next` of them are packed.
  struct Queue {
    std::vector<std::size_t> chunks;
    std::size_t next = 0;
    bool empty() const { return next == chunks.size(); }
  };

  Status BeginBuckets() override;
  Piece NextOfBuckets() const override;
  void Adapt(std::size_t bucket, CollectiveCall* call) override;
  void BucketIsBack(std::size_t bucket, bool nonfinite) override;

  bool Written(const Queue& queue) const;
  std::size_t PassLimit() const;
  void Pack(Queue* queue);
  void PackSent();
  void PackKept() { Pack(&kept_); }
  void TakeNorms();

  const std::size_t pass_chunks_;  // See PassLimit().
  Queue sent_;
  Queue kept_;
  std::size_t arrived_ = 0;  // Number of buckets.
  ReturningChunks returning_;
};

}  // namespace gradientflow
