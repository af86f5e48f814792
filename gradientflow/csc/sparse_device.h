#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "gradientflow/csc/packed_ring.h"
#include "gradientflow/csc/sparse.h"

namespace gradientflow {

// Sparse communication of a pool in a device's memory. A bucket is one pass
// before the wire and one after it, each a single launch. With a collective
// that takes calls ahead, a step asks the device once, after its end:
// everything from the first pass to the selection of the next step is submitted
// as soon as the gradients are, and ordered by events. Passes before the wire,
// the wire, and passes after it have a stream each, so that they overlap.
//
// Memory beyond that of any SparseAggregator: the chunks that a step sends
// after the warm-up, in the wire dtype, or two buckets if that is more.
class DeviceSparse final : public SparseAggregator {
 public:
  DeviceSparse(const AggregatorArgs& args, const CscOptions& config,
               ChunkSelector selector, CscMemories memories)
      : SparseAggregator(args, config, std::move(selector),
                         std::move(memories)) {}
  // Waits until the device no longer uses the memory.
  ~DeviceSparse() override;

  bool Submitted() const override {
    return Done() || (ahead() && phase_ == Phase::kSelecting);
  }
  const Event* end() const override {
    return ahead() ? after().mark() : nullptr;
  }
  const std::uint32_t* device_slots() const override {
    return As<std::uint32_t>(slots_[last_submitted()]);
  }
  const std::uint32_t* device_nonfinite() const override {
    return As<std::uint32_t>(nonfinite_[last_submitted()]);
  }

 private:
  Status Allocate() override;
  Status BeginBuckets() override;
  Piece NextOfBuckets() const override;
  void Adapt(std::size_t bucket, CollectiveCall* call) override;
  void BucketIsBack(std::size_t bucket, bool nonfinite) override;
  gradientflow::Done NormsSubmitted() override;
  void StepIsOver() override;

  // Whether steps are submitted without asking for results.
  bool ahead() const { return args_.collective->TakesAhead(); }
  Status MakeRing();
  std::size_t EndOf(std::size_t bucket) const;
  CscRegion Region(std::size_t bucket, CscMemory& memory) const;
  void PackBucket();
  void PackRest();
  void UnpackBucket();
  void ExchangeNorms();
  void NoteExchange(std::size_t written_end);
  static void OnBucketAhead(void* self, std::uint64_t bucket, std::uint32_t,
                            const Status& status);
  static void OnNormsAhead(void* self, std::uint64_t, std::uint32_t,
                           const Status& status);

  DeviceMemory packed_;
  std::size_t packed_elements_ = 0;
  PackedRing ring_;  // The places of buckets in packed_.
  // How many chunks are packed, which buckets have come back, and how many are
  // unpacked.
  std::size_t chunks_packed_ = 0;
  std::vector<std::uint32_t> slots_before_;  // By bucket.
  std::vector<std::uint8_t> back_;  // By bucket; not if calls are taken ahead.
  std::size_t unpacked_ = 0;
  bool norms_submitted_ = false;
};

}  // namespace gradientflow
