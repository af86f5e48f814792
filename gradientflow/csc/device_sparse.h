#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "gradientflow/buckets/aggregator.h"
#include "gradientflow/buckets/dense.h"
#include "gradientflow/csc/chunk_selector.h"
#include "gradientflow/device/device.h"

namespace gradientflow {

struct DeviceSparseConfig {
  bool zero_kept = false;
  float keep_factor = 0.9F;  // Decay of what is kept back.
  Device* device = nullptr;  // Borrowed, as the stream; outlive the aggregator.
  // What the collective's reads of device memory come after. The pool is ready
  // in its order (see DeviceSync).
  Stream* stream = nullptr;
};

// Coarse-grained sparse communication (arXiv 1902.06855, section on CSC and
// Algorithm 1) for a pool in a device's memory. The decisions are those of
// csc/sparse.h; the work is a few launches a step, on one stream:
//   chunk_residual  over the chunks that were written since the last launch:
//                   adds the residual, packs what is sent in the wire dtype
//   the collective  a contiguous range of the packed chunks per bucket
//   chunk_unpack    per bucket, into the pool, with the norms
//   the collective  the vector of norms
//   top_k           the chunks of the next step
// The selection comes to the host by an asynchronous copy; the driving thread
// looks at events and never waits for the device.
//
// Device memory beyond the pool: the residual (float32 per element), what is
// sent (wire dtype; the whole pool in the first step, less after), and some
// bytes per chunk.
class DeviceSparseAggregator final : public Aggregator {
 public:
  // parts.pool is memory of the device. kResourceExhausted if it has no room.
  static Result<std::unique_ptr<DeviceSparseAggregator>> Create(
      const AggregatorParts& parts, const DeviceSparseConfig& config,
      ChunkSelector selector, const std::vector<std::size_t>& always_dense);
  ~DeviceSparseAggregator() override;

  void Begin(std::uint64_t step, float loss_scale) override;
  void Advance(std::size_t written_end) override;
  bool Work() override;
  bool HasWork() const override;
  bool Done() const override { return phase_ == Phase::kDone; }
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
                    std::span<const std::byte> next_selection) const override;
  Status Restore(std::uint64_t next_step, float loss_scale,
                 std::span<const std::byte> residual,
                 std::span<const std::byte> next_selection) override;
  const std::uint32_t* device_slots() const override {
    return As<std::uint32_t>(slots_[finished_]);
  }

 private:
  enum class Phase {
    kBuckets,    // Packing, sending, unpacking.
    kNorms,      // The norms are on their way.
    kSelecting,  // The device chooses, and copies its choice here.
    kRestoring,  // A skipped step's gradients go back to the residual.
    kDone,
  };

  DeviceSparseAggregator(const AggregatorParts& parts,
                         const DeviceSparseConfig& config,
                         ChunkSelector selector);
  Status Allocate(const std::vector<std::size_t>& always_dense);
  Status EnsurePacked(std::size_t bytes);
  Status UploadSlots();
  std::size_t ChunksWritten() const;
  void Prepare(std::size_t chunk_end);
  void Launch();
  void Unpack(const Bucket& bucket);
  void StartNorms();
  void SelectOnDevice();
  void TakeSelection();
  void Restart();
  void Check(const Status& status);
  void CheckKernel(const char* kernel, int error);
  kernels::ChunkRange Range(std::size_t first, std::size_t end) const;
  static void OnBucket(void* self, std::uint64_t bucket, std::uint32_t flags,
                       const Status& status);
  static void OnNorms(void* self, std::uint64_t, std::uint32_t,
                      const Status& status);

  template <typename T>
  static T* As(const DeviceMemory& memory) {
    return reinterpret_cast<T*>(memory.get());
  }

  const AggregatorParts parts_;
  const DeviceSparseConfig config_;
  const kernels::ChunkKernelTable& kernels_;
  ChunkSelector selector_;
  std::size_t bucket_bytes_;
  std::vector<std::uint8_t> selection_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> packed_begin_;  // By bucket, in elements.
  std::vector<Extent> exchanged_;

  // Of the device.
  DeviceMemory residual_;
  DeviceMemory packed_;
  std::size_t packed_bytes_ = 0;
  // Of the step at hand, and of the one before it, which becomes the next.
  std::array<DeviceMemory, 2> slots_;
  int now_ = 0;
  int finished_ = 0;
  DeviceMemory selected_;
  DeviceMemory always_;
  DeviceMemory norms_;
  DeviceMemory workspace_;
  DeviceMemory nonfinite_;
  // Of the host, page-locked.
  DeviceMemory host_slots_;
  DeviceMemory host_selected_;
  DeviceMemory host_nonfinite_;
  std::unique_ptr<Event> copied_;
  std::vector<float> residual_copy_;

  std::uint64_t step_ = 0;
  float loss_scale_ = 1.0F;
  std::size_t written_end_ = 0;
  std::size_t prepared_ = 0;  // Chunks.
  std::size_t launched_ = 0;  // Buckets.
  std::size_t arrived_ = 0;
  std::vector<Clock::Time> launched_at_;
  Phase phase_ = Phase::kDone;
  AggregateResult result_;
};

}  // namespace gradientflow
