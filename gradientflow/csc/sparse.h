#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "gradientflow/base/pages.h"
#include "gradientflow/buckets/aggregator.h"
#include "gradientflow/buckets/dense.h"
#include "gradientflow/csc/chunk_selector.h"
#include "kernels/kernels.h"

namespace gradientflow {

struct SparseConfig {
  bool zero_kept = false;
  float keep_factor = 0.9F;  // Decay of what is kept back.
  const kernels::KernelTable* kernels = nullptr;
};

// A saved selection, as selectors take it.
std::span<const std::uint8_t> SelectionIn(std::span<const std::byte> bytes);
// What Aggregator::CheckState() says of a sparse session.
Status CheckSparseState(const ChunkSelector& selector,
                        std::size_t residual_bytes, std::uint64_t next_step,
                        std::span<const std::byte> residual,
                        std::span<const std::byte> next_selection);

// Coarse-grained sparse communication (arXiv 1902.06855, section on CSC and
// Algorithm 1). Per chunk, as soon as it is written, one pass adds the residual
// (and takes the norm of what is kept back); what is to be sent goes first, so
// that the wire never waits for what is not.
//   Selected chunks form buckets, by the same theta rule as tensors do. They
//   are sent from the pool itself: the collective walks their extents, so the
//   staging copy of the paper is the conversion to the wire dtype.
// After a bucket is back, its chunks' norms are taken from the means; at the
// end the vector of norms is summed over the ranks and selects the chunks of
// the next step.
//
// Memory beyond the pool: the residual (float32 per element).
class SparseAggregator final : public Aggregator {
 public:
  SparseAggregator(const AggregatorParts& parts, const SparseConfig& config,
                   ChunkSelector selector);

  void Begin(std::uint64_t step, float loss_scale) override;
  void Advance(std::size_t written_end) override;
  bool Work() override;
  bool HasWork() const override;
  bool Done() const override { return done_; }
  const AggregateResult& result() const override { return result_; }
  std::span<const Extent> exchanged() const override { return exchanged_; }
  std::span<const std::uint8_t> selection() const override {
    return selection_;
  }
  void SetBucketBytes(std::size_t bytes) override { bucket_bytes_ = bytes; }
  Result<std::span<const float>> residual() override;
  std::span<const std::uint8_t> next_selection() const override {
    return selector_.selected();
  }
  std::size_t residual_bytes() const override {
    return parts_.layout->elements() * sizeof(float);
  }
  Status CheckState(std::uint64_t next_step,
                    std::span<const std::byte> residual,
                    std::span<const std::byte> next_selection) const override {
    return CheckSparseState(selector_, residual_bytes(), next_step, residual,
                            next_selection);
  }
  Status Restore(std::uint64_t next_step, float loss_scale,
                 std::span<const std::byte> residual,
                 std::span<const std::byte> next_selection) override;

 private:
  std::byte* At(std::size_t element) const;
  bool Written(const std::vector<std::size_t>& chunks, std::size_t next) const;
  bool AllArrived() const;
  void Prepare(std::size_t chunk);
  void Launch();
  void TakeNorms(const Bucket& bucket);
  void StartNorms();
  void Select();
  void KeepFinite();
  void RecordKernel(const char* name, std::uint64_t id, std::size_t elements,
                    Clock::Time begin);
  void Rescale(float loss_scale);
  static void OnBucket(void* self, std::uint64_t bucket, std::uint32_t flags,
                       const Status& status);
  static void OnNorms(void* self, std::uint64_t, std::uint32_t,
                      const Status& status);

  const AggregatorParts parts_;
  const SparseConfig config_;
  ChunkSelector selector_;
  std::size_t bucket_bytes_;
  Pages<float> residual_;
  std::vector<std::uint8_t> dirty_;  // The chunk's residual is not all zero.
  std::vector<std::uint8_t> selection_;
  std::vector<Bucket> buckets_;
  std::vector<Extent> exchanged_;
  std::vector<float> norms_;

  std::uint64_t step_ = 0;
  float loss_scale_ = 1.0F;
  std::size_t written_end_ = 0;
  std::vector<std::size_t> sent_;  // Chunks, ascending.
  std::vector<std::size_t> kept_;
  std::size_t next_sent_ = 0;  // To be prepared, of sent_.
  std::size_t next_kept_ = 0;
  std::size_t launched_ = 0;              // Buckets.
  std::vector<Clock::Time> launched_at_;  // By bucket.
  std::size_t arrived_ = 0;
  std::vector<std::size_t> unmeasured_;  // Buckets back, norms to be taken.
  bool norms_started_ = false;
  bool done_ = true;
  AggregateResult result_;
};

}  // namespace gradientflow
