#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gradientflow/base/looks.h"
#include "gradientflow/buckets/aggregator.h"
#include "gradientflow/buckets/dense.h"
#include "gradientflow/csc/csc.h"

namespace gradientflow {

// Coarse-grained sparse communication of a session's pool, in any memory. csc.h
// has the rules and a picture of one step. Here they meet a collective:
//   Advance()  says how far the pool is written
//   Work()     packs written chunks. Selected chunks form buckets by the same
//              theta rule as tensors do. Buckets are exchanged, and unpacked
//              when they are back. At the end of the step the ranks exchange
//              the norms, which select the chunks of the next step
//
// How buckets are packed, exchanged and unpacked depends on the kind of memory:
// sparse_host.h and sparse_device.h. Everything else of a step is here.
//
// Memory beyond the pool: the residual (float32 per element), unless it is in
// the gradients, and some bytes per chunk.
class SparseAggregator : public Aggregator {
 public:
  // args.pool is memory of the kind `memories`. config.share is ignored; it
  // follows from `args`. Returns kResourceExhausted if there is no room;
  // kInvalidArgument names a setting.
  static Result<std::unique_ptr<SparseAggregator>> Create(
      const AggregatorArgs& args, const CscOptions& config,
      CscMemories memories);

  void Begin(std::uint64_t step, float loss_scale) final;
  void Advance(std::size_t written_end) final { written_end_ = written_end; }
  bool Work() final;
  bool HasWork() const final { return NextPiece() != nullptr; }
  bool Done() const final { return phase_ == Phase::kDone; }
  const AggregateResult& result() const final { return result_; }
  std::span<const Extent> exchanged() const final { return exchanged_; }
  std::span<const std::uint8_t> selection() const final { return selection_; }
  void SetBucketBytes(std::size_t bytes) final { bucket_bytes_ = bytes; }
  Result<std::span<const float>> residual() final;
  Status ZeroSent() final {
    return in_gradients() ? csc_.ZeroSent(region_) : Status();
  }
  std::span<const std::uint8_t> next_selection() const final {
    return selector_.selected();
  }
  std::size_t residual_bytes() const final {
    return args_.layout->elements() * sizeof(float);
  }
  Status CheckState(std::uint64_t next_step,
                    std::span<const std::byte> residual,
                    std::span<const std::byte> next_selection) const final;
  Status Restore(std::uint64_t next_step, float loss_scale,
                 std::span<const std::byte> residual,
                 std::span<const std::byte> next_selection) final;

 protected:
  enum class Phase : std::uint8_t {
    kBuckets,    // Packing, exchanging, unpacking.
    kNorms,      // The norms are being exchanged.
    kSelecting,  // Top-k runs; its result goes to the host.
    kDone,
  };
  // A piece of this rank's work; null: there is none now.
  using Piece = void (SparseAggregator::*)();
  template <typename Kind>
  static Piece PieceOf(void (Kind::*piece)()) {
    return static_cast<Piece>(piece);
  }

  SparseAggregator(const AggregatorArgs& args, const CscOptions& config,
                   ChunkSelector selector, CscMemories memories);

  // What depends on the kind of memory. What Allocate() allocates is zeroed.
  virtual Status Allocate();
  // The buckets of a step are known.
  virtual Status BeginBuckets() = 0;
  // The next piece of the phases kBuckets and kNorms.
  virtual Piece NextOfBuckets() const = 0;
  // Completes the call that exchanges the bucket. If it is to be submitted
  // without asking for its result, that sets call->submitted.
  virtual void Adapt(std::size_t bucket, CollectiveCall* call) = 0;
  // The bucket has been exchanged, and its call was not submitted ahead.
  virtual void BucketIsBack(std::size_t bucket, bool nonfinite) = 0;
  // CollectiveCall::submitted of the exchange of the norms.
  virtual gradientflow::Done NormsSubmitted() { return {}; }
  // All calls of the step have ended.
  virtual void StepIsOver() {}

  // What is kept back is in the pool itself.
  bool in_gradients() const { return csc_.config().in_gradients; }
  // The elements of a chunk, unless it is the last one.
  std::size_t width() const { return selector_.chunk(0).count; }
  CscMemory& memory() const { return *memory_; }
  CscMemory& after() const {
    return memory_after_ != nullptr ? *memory_after_ : *memory_;
  }
  bool all_written() const { return written_end_ == args_.layout->elements(); }
  // Which of the two arrays belongs to the last step that is submitted.
  int last_submitted() const {
    return phase_ == Phase::kSelecting ? now_ : finished_;
  }
  // Exchanges the next bucket.
  void StartBucket();
  void StartNorms();
  void Select();
  void Check(const Status& status);
  void RecordBucket(std::size_t id);
  // Records the timeline's bar of a pass on the host. Those on a device are
  // left out, because the host does not see when they end.
  void RecordPass(const char* name, std::span<const std::size_t> chunks,
                  Clock::Time begin);

  template <typename T>
  static T* As(const DeviceMemory& memory) {
    return reinterpret_cast<T*>(memory.get());
  }

  const AggregatorArgs args_;
  Csc csc_;
  ChunkSelector selector_;
  CscRegion region_;  // The pool.
  std::size_t bucket_bytes_;
  std::vector<std::uint8_t> selection_;
  std::vector<Bucket> buckets_;
  std::size_t launched_ = 0;  // Number of buckets.
  std::size_t written_end_ = 0;
  Phase phase_ = Phase::kDone;
  AggregateResult result_;
  // slots_[now_] and nonfinite_[now_] belong to the current step. The others
  // belong to the previous step, whose update may still read them, and then
  // become those of the next step.
  std::array<DeviceMemory, 2> slots_;
  std::array<DeviceMemory, 2> nonfinite_;

 private:
  Status UploadTensors();
  Status UploadSelection();
  Piece NextPiece() const;
  void End() { phase_ = Phase::kDone; }
  void Look();
  void TakeSelection();
  static void OnBucket(void* self, std::uint64_t bucket, std::uint32_t flags,
                       const Status& status);
  static void OnNorms(void* self, std::uint64_t, std::uint32_t,
                      const Status& status);
  // The end of a call that was submitted tells only of its failure.
  static void OnEnd(void* self, std::uint64_t, std::uint32_t,
                    const Status& status);

  const std::unique_ptr<CscMemory> memory_;
  // For passes after the exchange; null if they are in the order of the others.
  const std::unique_ptr<CscMemory> memory_after_;
  std::vector<Extent> exchanged_;
  std::vector<Clock::Time> launched_at_;  // By bucket.
  std::uint64_t step_ = 0;
  Looks looks_;
  int now_ = 0;
  int finished_ = 0;

  DeviceMemory residual_;
  DeviceMemory selected_;
  DeviceMemory always_;
  DeviceMemory norms_;
  DeviceMemory workspace_;
  DeviceMemory tensors_;  // Where they lie in the pool, if a skip hides them.
  DeviceMemory dirty_;
  DeviceMemory host_selected_;
  DeviceMemory host_nonfinite_;
  // The source of copies that may still be under way when the next one begins,
  // so it must not change.
  DeviceMemory host_zero_;
  std::vector<float> residual_copy_;  // From a device, or from gradients.
};

}  // namespace gradientflow
