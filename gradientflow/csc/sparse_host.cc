#include "gradientflow/csc/sparse_host.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "gradientflow/csc/pass_size.h"

namespace gradientflow {
namespace {

// While nothing is on the wire, a pass takes this many times as much, because
// threads lose a few microseconds at either end of a pass.
constexpr std::size_t kQuietTimes = 4;

int ThreadsOf(const Workers* workers) {
  return workers == nullptr ? 1 : workers->threads();
}

}  // namespace

HostSparse::HostSparse(const AggregatorArgs& args, const CscOptions& config,
                       ChunkSelector selector, CscMemories memories)
    : SparseAggregator(args, config, std::move(selector), std::move(memories)),
      pass_chunks_(PassChunks(ThreadsOf(memory().workers()),
                              config.selection.chunk_elements)) {}

Status HostSparse::BeginBuckets() {
  sent_ = kept_ = Queue();
  for (std::size_t c = 0; c < selection_.size(); ++c) {
    (selection_[c] == 0 ? kept_ : sent_).chunks.push_back(c);
  }
  returning_.Begin(width(), sent_.chunks, buckets_);
  arrived_ = 0;
  return Status();
}

// Returns whether there is a next chunk and it is written.
bool HostSparse::Written(const Queue& queue) const {
  if (queue.empty()) return false;
  const Extent chunk = selector_.chunk(queue.chunks[queue.next]);
  return chunk.begin + chunk.count <= written_end_;
}

// Chunks to be sent go first, so that the wire never waits for what is kept.
SparseAggregator::Piece HostSparse::NextOfBuckets() const {
  if (phase_ != Phase::kBuckets) return nullptr;
  if (Written(sent_)) return PieceOf(&HostSparse::PackSent);
  if (returning_.any()) return PieceOf(&HostSparse::TakeNorms);
  if (Written(kept_)) return PieceOf(&HostSparse::PackKept);
  const bool all_back =
      sent_.empty() && kept_.empty() && arrived_ == buckets_.size();
  return all_back ? PieceOf(&HostSparse::StartNorms) : nullptr;
}

// How many chunks a pass may take.
std::size_t HostSparse::PassLimit() const {
  const bool quiet = launched_ == arrived_;
  return quiet ? pass_chunks_ * kQuietTimes : pass_chunks_;
}

// Packs the next written chunks, as many as a pass may take.
void HostSparse::Pack(Queue* queue) {
  const Clock::Time begin = args_.clock->Now();
  const std::size_t first = queue->next;
  do {
    ++queue->next;
  } while (queue->next - first < PassLimit() && Written(*queue));
  const std::span<const std::size_t> chunks =
      std::span(queue->chunks).subspan(first, queue->next - first);
  Check(csc_.Pack(region_, chunks));
  RecordPass("residual", chunks, begin);
}

// Then starts the buckets whose chunks are all packed, in order.
void HostSparse::PackSent() {
  Pack(&sent_);
  const std::size_t packed_end =
      sent_.empty() ? args_.layout->elements()
                    : selector_.chunk(sent_.chunks[sent_.next]).begin;
  while (result_.status.ok() && launched_ < buckets_.size() &&
         buckets_[launched_].pool_end <= packed_end) {
    StartBucket();
  }
}

void HostSparse::Adapt(std::size_t bucket, CollectiveCall* call) {
  call->feed = returning_.feed(bucket);
  call->workers = memory().workers();
}

void HostSparse::BucketIsBack(std::size_t, bool nonfinite) {
  ++arrived_;
  if (nonfinite) *region_.nonfinite = 1;
}

// Takes the norms of chunks that are back, where they have been exchanged in
// place.
void HostSparse::TakeNorms() {
  const Clock::Time begin = args_.clock->Now();
  const std::span<const std::size_t> chunks = returning_.Take(pass_chunks_);
  Check(csc_.Unpack(region_, chunks));
  RecordPass("norms", chunks, begin);
}

}  // namespace gradientflow
