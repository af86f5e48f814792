#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/clock.h"
#include "gradientflow/base/dtype.h"
#include "gradientflow/buckets/aggregator.h"
#include "gradientflow/buckets/bucket_plan.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/buckets/step_end.h"
#include "gradientflow/buckets/wire_times.h"
#include "gradientflow/device/device_sync.h"
#include "gradientflow/observe/recorder.h"

namespace gradientflow {

// What every aggregator is made from. All are borrowed, and outlive it.
struct AggregatorArgs {
  Collective* collective = nullptr;
  GroupId group = 0;  // The calls use this group's gradient channel.
  int ranks = 1;      // In the group.
  const PoolLayout* layout = nullptr;
  std::byte* pool = nullptr;
  // Zeroes a part of the pool, in the order of whoever writes to it. Needed if
  // gradients are added to the pool.
  std::function<Status(const BufferView&)> zero = {};
  DType pool_dtype = DType::kFloat32;
  DType wire_dtype = DType::kFloat32;
  ReduceOp reduce = ReduceOp::kMean;
  std::size_t bucket_bytes = 0;  // Must not be kAutoBytes.
  Recorder* recorder = nullptr;
  const Clock* clock = nullptr;
  StepEnd* end = nullptr;  // If dense steps are submitted ahead of results.
  // The order between backward and the calls, on a device; else null.
  DeviceSync* sync = nullptr;
  // If steps are submitted ahead: to be told of each exchange. May be null.
  WireTimes* wire_times = nullptr;
};

// Lazy allreduce (arXiv 1902.06855): each bucket of whole tensors is reduced in
// place, in the pool, as soon as it is written. Nothing is copied. With an
// args.end, whose stream is the wire of the collective's calls, steps are
// submitted ahead of their results.
class DenseAggregator final : public Aggregator {
 public:
  explicit DenseAggregator(const AggregatorArgs& args);

  void Begin(std::uint64_t step, float loss_scale) override;
  void Advance(std::size_t written_end) override;
  bool Work() override;
  bool HasWork() const override;
  bool Done() const override {
    return done_ == buckets_.size() ||
           (args_.end != nullptr && !result_.status.ok());
  }
  bool Submitted() const override { return Done() || end_submitted_; }
  const Event* end() const override {
    return args_.end == nullptr ? nullptr : &args_.end->event();
  }
  const AggregateResult& result() const override { return result_; }
  std::span<const Extent> exchanged() const override { return exchanged_; }
  std::span<const std::uint8_t> selection() const override { return {}; }
  void SetBucketBytes(std::size_t bytes) override;
  Status ZeroSent() override;
  Result<std::span<const float>> residual() override {
    return std::span<const float>();
  }
  const std::uint32_t* device_nonfinite() const override {
    return args_.end == nullptr ? nullptr : args_.end->nonfinite();
  }
  std::span<const std::uint8_t> next_selection() const override { return {}; }
  std::size_t residual_bytes() const override { return 0; }
  Status CheckState(std::uint64_t next_step,
                    std::span<const std::byte> residual,
                    std::span<const std::byte> next_selection) const override;
  Status Restore(std::uint64_t, float, std::span<const std::byte>,
                 std::span<const std::byte>) override {
    return Status();
  }

 private:
  static void OnDone(void* self, std::uint64_t bucket, std::uint32_t flags,
                     const Status& status);
  static Status AwaitBucket(void* self, std::uint64_t bucket, Stream& stream);
  static void OnSubmitted(void* self, std::uint64_t, std::uint32_t,
                          const Status&);
  static void OnAheadEnded(void* self, std::uint64_t, std::uint32_t,
                           const Status& status);
  void Check(const Status& status);
  void TakeEnd();

  const AggregatorArgs args_;
  std::size_t bucket_bytes_;
  std::vector<Bucket> buckets_;
  std::vector<Extent> exchanged_;
  std::uint64_t step_ = 0;
  float loss_scale_ = 1.0F;
  std::size_t launched_ = 0;
  std::vector<Clock::Time> launched_at_;  // By bucket.
  std::size_t done_ = 0;
  std::size_t submitted_ = 0;  // If steps are submitted ahead.
  bool end_submitted_ = false;
  AggregateResult result_;
};

// Returns the call that aggregates `bucket` of the pool, whose gradients are
// those of a loss that was multiplied by `loss_scale`.
CollectiveCall BucketCall(const AggregatorArgs& args, const Bucket& bucket,
                          float loss_scale, std::uint64_t step,
                          std::uint64_t id);

// Returns the factor between what a step leaves in the pool and the true
// gradients. It is 1 in a float32 pool. A 16-bit pool keeps gradients scaled,
// so that small ones are not lost.
float ScaleInPool(const AggregatorArgs& args, float loss_scale);

// Returns the bar of the timeline for a bucket that has been reduced.
Span BucketSpan(const AggregatorArgs& args, const Bucket& bucket,
                std::uint64_t step, std::uint64_t id, Clock::Time begin);

}  // namespace gradientflow
