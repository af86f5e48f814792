#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gradientflow/buckets/aggregator.h"
#include "gradientflow/buckets/dense.h"
#include "gradientflow/csc/csc.h"
#include "gradientflow/csc/packed_ring.h"
#include "gradientflow/csc/returning_chunks.h"

namespace gradientflow {

// Coarse-grained sparse communication of a session's pool, in any memory. csc.h
// has the rules and a picture of one step. Here they meet a collective:
//   Advance()  says how far the pool is written
//   Work()     packs written chunks. Selected chunks form buckets by the same
//              theta rule as tensors do. Buckets are exchanged, and unpacked
//              when they are back. At the end of the step the ranks exchange
//              the norms, which select the chunks of the next step
//
// On the host a pass works on some chunks, which threads may share. Chunks to
// be sent go first, so that the wire never waits for kept chunks. They are
// exchanged where they are: the collective walks their extents and converts.
// The norm of a chunk is taken as soon as all of it is back, while it is still
// in the caches.
// On a device, a bucket is one pass before the wire and one after it, each a
// single launch. With a collective that takes calls ahead, a step asks the
// device once, after its end: everything from the first pass to the selection
// of the next step is submitted as soon as the gradients are, and ordered by
// events. Passes before the wire, the wire, and passes after it have a stream
// each, so that they overlap.
//
// Memory beyond the pool: the residual (float32 per element), unless it is in
// the gradients, and some bytes per chunk. On a device also the chunks that a
// step sends after the warm-up, in the wire dtype, or two buckets if that is
// more.
class SparseAggregator final : public Aggregator {
 public:
  // args.pool is memory of the kind `memories`. config.share is ignored; it
  // follows from `args`. Returns kResourceExhausted if there is no room;
  // kInvalidArgument names a setting.
  static Result<std::unique_ptr<SparseAggregator>> Create(
      const AggregatorArgs& args, const CscOptions& config,
      CscMemories memories);
  // Waits until the device no longer uses the memory.
  ~SparseAggregator() override;

  void Begin(std::uint64_t step, float loss_scale) override;
  void Advance(std::size_t written_end) override { written_end_ = written_end; }
  bool Work() override;
  bool HasWork() const override { return NextPiece() != nullptr; }
  bool Done() const override { return phase_ == Phase::kDone; }
  bool Submitted() const override {
    return Done() || (ahead() && phase_ == Phase::kSelecting);
  }
  const Event* end() const override {
    return ahead() ? after().mark() : nullptr;
  }
  const AggregateResult& result() const override { return result_; }
  std::span<const Extent> exchanged() const override { return exchanged_; }
  std::span<const std::uint8_t> selection() const override {
    return selection_;
  }
  void SetBucketBytes(std::size_t bytes) override { bucket_bytes_ = bytes; }
  Result<std::span<const float>> residual() override;
  Status ZeroSent() override {
    return in_gradients() ? csc_.ZeroSent(region_) : Status();
  }
  std::span<const std::uint8_t> next_selection() const override {
    return selector_.selected();
  }
  std::size_t residual_bytes() const override {
    return args_.layout->elements() * sizeof(float);
  }
  Status CheckState(std::uint64_t next_step,
                    std::span<const std::byte> residual,
                    std::span<const std::byte> next_selection) const override;
  Status Restore(std::uint64_t next_step, float loss_scale,
                 std::span<const std::byte> residual,
                 std::span<const std::byte> next_selection) override;
  const std::uint32_t* device_slots() const override {
    return on_host() ? nullptr : As<std::uint32_t>(slots_[last_submitted()]);
  }
  const std::uint32_t* device_nonfinite() const override {
    return on_host() ? nullptr
                     : As<std::uint32_t>(nonfinite_[last_submitted()]);
  }

 private:
  enum class Phase {
    kBuckets,    // Packing, exchanging, unpacking.
    kNorms,      // The norms are being exchanged.
    kSelecting,  // Top-k runs; its result goes to the host.
    kDone,
  };
  // A piece of this rank's work; null: there is none now.
  using Piece = void (SparseAggregator::*)();
  // Chunks to be packed, ascending; the first `next` of them are packed.
  struct Queue {
    std::vector<std::size_t> chunks;
    std::size_t next = 0;
  };

  SparseAggregator(const AggregatorArgs& args, const CscOptions& config,
                   ChunkSelector selector, CscMemories memories);
  Status Allocate();
  Status UploadSelection();
  bool on_host() const { return !memory_->asynchronous(); }
  // What is kept back is in the pool itself.
  bool in_gradients() const { return csc_.config().in_gradients; }
  Piece NextPiece() const;
  void End() { phase_ = Phase::kDone; }
  void Look();
  bool Written(const Queue& queue) const;
  bool AllBack() const;
  std::size_t PassLimit() const;
  void Pack(Queue* queue);
  void PackSent() {
    Pack(&sent_);
    Launch();
  }
  void PackKept() { Pack(&kept_); }
  void Launch();
  void StartBucket(std::size_t id);
  void RecordBucket(std::size_t id);
  void TakeNorms();
  void StartNorms();
  void Select();
  void TakeSelection();
  void Check(const Status& status);
  void RecordPass(const char* name, std::uint64_t id, std::size_t elements,
                  Clock::Time begin);
  static void OnBucket(void* self, std::uint64_t bucket, std::uint32_t flags,
                       const Status& status);
  static void OnEnd(void* self, std::uint64_t, std::uint32_t,
                    const Status& status);
  static void OnNorms(void* self, std::uint64_t, std::uint32_t,
                      const Status& status);

  // On a device (sparse_device.cc).
  CscMemory& after() const {
    return memory_after_ != nullptr ? *memory_after_ : *memory_;
  }
  // Whether steps are submitted without asking for results.
  bool ahead() const { return !on_host() && args_.collective->TakesAhead(); }
  // Which of the two arrays belongs to the last step that is submitted.
  int last_submitted() const {
    return phase_ == Phase::kSelecting ? now_ : finished_;
  }
  Status MakeRing();
  Status PlaceBuckets();
  std::size_t EndOf(std::size_t bucket) const;
  CscRegion Region(std::size_t bucket, CscMemory& memory) const;
  Piece NextSubmission() const;
  void PackBucket();
  void PackRest();
  void UnpackBucket();
  bool MayLook();
  void NoteExchange(std::size_t written_end);
  void NoteBucketsPassed();
  static void OnBucketAhead(void* self, std::uint64_t bucket, std::uint32_t,
                            const Status& status);
  static void OnNormsAhead(void* self, std::uint64_t, std::uint32_t,
                           const Status& status);

  template <typename T>
  static T* As(const DeviceMemory& memory) {
    return reinterpret_cast<T*>(memory.get());
  }

  const AggregatorArgs args_;
  const std::unique_ptr<CscMemory> memory_;
  // For passes after the exchange; null if they are in the order of the others.
  const std::unique_ptr<CscMemory> memory_after_;
  Csc csc_;
  ChunkSelector selector_;
  const std::size_t pass_chunks_;  // See PassLimit().
  CscRegion region_;               // The pool.
  std::size_t bucket_bytes_;
  std::vector<std::uint8_t> selection_;
  std::vector<Bucket> buckets_;
  std::vector<Extent> exchanged_;

  DeviceMemory residual_;
  DeviceMemory packed_;
  std::size_t packed_elements_ = 0;
  PackedRing ring_;  // The places of buckets in packed_.
  // slots_[now_] and nonfinite_[now_] belong to the current step. The others
  // belong to the previous step, whose update may still read them, and then
  // become those of the next step.
  std::array<DeviceMemory, 2> slots_;
  std::array<DeviceMemory, 2> nonfinite_;
  int now_ = 0;
  int finished_ = 0;
  DeviceMemory selected_;
  DeviceMemory always_;
  DeviceMemory norms_;
  DeviceMemory workspace_;
  DeviceMemory dirty_;
  DeviceMemory host_selected_;
  DeviceMemory host_nonfinite_;
  // The source of copies that may still be under way when the next one begins,
  // so it must not change.
  DeviceMemory host_zero_;
  std::vector<float> residual_copy_;  // From a device, or from gradients.

  std::uint64_t step_ = 0;
  std::size_t written_end_ = 0;
  // On the host.
  Queue sent_;
  Queue kept_;
  std::size_t launched_ = 0;              // Number of buckets.
  std::vector<Clock::Time> launched_at_;  // By bucket.
  std::size_t arrived_ = 0;
  ReturningChunks returning_;  // On the host.
  // On a device: how many chunks are packed, which buckets have come back, and
  // how many are unpacked.
  std::size_t chunks_packed_ = 0;
  std::vector<std::uint32_t> slots_before_;  // By bucket.
  std::vector<std::uint8_t> back_;  // By bucket; not if calls are taken ahead.
  std::size_t unpacked_ = 0;
  bool norms_submitted_ = false;
  Clock::Time looked_at_{};
  Phase phase_ = Phase::kDone;
  AggregateResult result_;
};

}  // namespace gradientflow
