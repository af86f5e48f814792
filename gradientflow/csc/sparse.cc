#include "gradientflow/csc/sparse.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/wire.h"

// One step, in the phases of SparseAggregator::Phase:
//
//   kBuckets    Pack() chunks as they are written; Launch() a bucket once all
//               of its chunks are packed; take the norms of what is back
//   kNorms      the ranks add up the norms of all chunks
//   kSelecting  top-k over the sums: the slots and the selection of the next
//               step, which are copied to the host. If something was not
//               finite, Csc::Skip()
//
// Each phase begins when the one before is done; if a device takes calls ahead,
// when the one before is submitted (sparse_device.cc). Work() does a piece at a
// time. There are two arrays of slots, because the optimiser reads those of the
// finished step while the next one is selected.
namespace gradientflow {
namespace {

CscOptions WithShare(CscOptions config, const AggregatorArgs& args) {
  if (args.reduce != ReduceOp::kMean) {
    config.share = 1.0F / static_cast<float>(args.ranks);
  }
  return config;
}

// A pass takes this much for each thread. In the meantime the wire is not
// served.
constexpr std::size_t kPassElements = std::size_t{128} << 10;
// While nothing is on the wire it takes so many times as much, because threads
// lose a few microseconds at either end of a pass.
constexpr std::size_t kQuietTimes = 4;

// How many chunks a pass may take.
std::size_t PassChunks(const CscMemory& memory, std::size_t chunk_elements) {
  if (memory.asynchronous()) return std::numeric_limits<std::size_t>::max();
  const Workers* workers = memory.workers();
  const int threads = workers == nullptr ? 1 : workers->threads();
  return static_cast<std::size_t>(threads) *
         std::max<std::size_t>(1, kPassElements / chunk_elements);
}

std::span<const std::uint8_t> SelectionIn(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

}  // namespace

Result<std::unique_ptr<SparseAggregator>> SparseAggregator::Create(
    const AggregatorArgs& args, const CscOptions& config,
    CscMemories memories) {
  Result<ChunkSelector> selector = ChunkSelector::Create(config.selection);
  if (!selector.ok()) return selector.status();
  std::unique_ptr<SparseAggregator> made(new SparseAggregator(
      args, config, std::move(selector).value(), std::move(memories)));
  GF_RETURN_IF_ERROR(made->Allocate());
  return made;
}

SparseAggregator::SparseAggregator(const AggregatorArgs& args,
                                   const CscOptions& config,
                                   ChunkSelector selector, CscMemories memories)
    : args_(args),
      memory_(std::move(memories.before)),
      memory_after_(std::move(memories.after)),
      csc_(WithShare(config, args)),
      selector_(std::move(selector)),
      pass_chunks_(PassChunks(*memory_, config.selection.chunk_elements)),
      bucket_bytes_(args.bucket_bytes) {}

SparseAggregator::~SparseAggregator() {
  (void)memory_->Synchronize();
  (void)after().Synchronize();
}

Status SparseAggregator::Allocate() {
  const std::size_t chunks = selector_.chunks();
  const bool has_dirty = on_host() || in_gradients();
  const auto own = &CscMemory::Allocate;
  const auto wire = &CscMemory::AllocateForWire;
  const auto host = &CscMemory::AllocateOnHost;
  const struct {
    DeviceMemory* memory;
    std::size_t bytes;
    Result<DeviceMemory> (CscMemory::*allocate)(std::size_t bytes);
  } wanted[] = {
      {&residual_, in_gradients() ? 0 : residual_bytes(), own},
      {&slots_[0], chunks * sizeof(std::uint32_t), own},
      {&slots_[1], chunks * sizeof(std::uint32_t), own},
      {&selected_, chunks, own},
      {&always_, chunks, own},
      {&norms_, chunks * sizeof(float), wire},
      {&workspace_, kernels::TopKWorkspaceBytes(chunks), own},
      {&nonfinite_[0], sizeof(std::uint32_t), own},
      {&nonfinite_[1], sizeof(std::uint32_t), own},
      {&dirty_, has_dirty ? chunks : 0, host},
      {&host_selected_, chunks, host},
      {&host_nonfinite_, sizeof(std::uint32_t), host},
      {&host_zero_, sizeof(std::uint32_t), host},
  };
  for (const auto& want : wanted) {
    Result<DeviceMemory> memory = ((*memory_).*want.allocate)(want.bytes);
    if (!memory.ok()) return memory.status();
    *want.memory = std::move(memory).value();
  }
  std::memset(host_zero_.get(), 0, sizeof(std::uint32_t));
  if (has_dirty && chunks > 0) std::memset(dirty_.get(), 0, chunks);
  region_.memory = memory_.get();
  region_.elements = args_.layout->elements();
  region_.grads = args_.pool;
  region_.type = args_.pool_dtype;
  region_.residual = in_gradients() ? nullptr : As<float>(residual_);
  region_.norms = As<float>(norms_);
  region_.dirty = has_dirty ? As<std::uint8_t>(dirty_) : nullptr;
  region_.wire = args_.wire_dtype;
  if (!on_host()) GF_RETURN_IF_ERROR(MakeRing());
  GF_RETURN_IF_ERROR(
      memory_->Copy(always_.get(), selector_.always_dense().data(), chunks));
  return UploadSelection();
}

Status SparseAggregator::UploadSelection() {
  GF_RETURN_IF_ERROR(
      memory_->Copy(slots_[now_].get(), selector_.slots().data(),
                    selector_.slots().size() * sizeof(std::uint32_t)));
  return memory_->Synchronize();
}

// The first error of a step is its result.
void SparseAggregator::Check(const Status& status) {
  if (status.ok() || !result_.status.ok()) return;
  result_.status = Status(status.code(),
                          StrCat("step ", step_, " on ", memory_->description(),
                                 ": ", status.message()));
}

void SparseAggregator::Begin(std::uint64_t step, float loss_scale) {
  step_ = step;
  if (in_gradients()) residual_copy_ = {};  // As large as the pool.
  result_ = AggregateResult();
  result_.gradient_scale = ScaleInPool(args_, loss_scale);
  Check(
      csc_.Rescale(region_, csc_.SetScale(loss_scale, result_.gradient_scale)));
  selection_ = selector_.selected();
  const std::size_t chunk_elements = selector_.chunk(0).count;
  buckets_ = PlanSparse({args_.layout->elements(), chunk_elements, selection_},
                        bucket_bytes_, SizeOf(args_.wire_dtype));
  exchanged_ = ExtentsOf(buckets_);
  region_.slots = As<std::uint32_t>(slots_[now_]);
  region_.nonfinite = As<std::uint32_t>(nonfinite_[now_]);
  Check(memory_->Copy(region_.nonfinite, host_zero_.get(),
                      sizeof(std::uint32_t)));
  sent_ = kept_ = Queue();
  if (on_host()) {
    for (std::size_t c = 0; c < selection_.size(); ++c) {
      (selection_[c] == 0 ? kept_ : sent_).chunks.push_back(c);
    }
    returning_.Begin(chunk_elements, sent_.chunks, buckets_);
  } else {
    Check(PlaceBuckets());
  }
  if (args_.wire_times != nullptr) {
    Check(args_.wire_times->Begin(buckets_.size() + 1));  // And the norms.
  }
  written_end_ = launched_ = arrived_ = 0;
  launched_at_.clear();
  phase_ = Phase::kBuckets;
  result_.buckets = buckets_.size();
  result_.chunks = selector_.chunks();
  result_.selected_chunks = selector_.selected_count();
}

// Returns whether there is a next chunk and it is written.
bool SparseAggregator::Written(const Queue& queue) const {
  if (queue.next == queue.chunks.size()) return false;
  const Extent chunk = selector_.chunk(queue.chunks[queue.next]);
  return chunk.begin + chunk.count <= written_end_;
}

bool SparseAggregator::AllBack() const {
  return sent_.next == sent_.chunks.size() &&
         kept_.next == kept_.chunks.size() && arrived_ == buckets_.size();
}

// Chunks to be sent go first, so that the wire never waits for what is kept.
SparseAggregator::Piece SparseAggregator::NextPiece() const {
  using Self = SparseAggregator;
  if (phase_ == Phase::kDone) return nullptr;
  if (!result_.status.ok()) return &Self::End;
  if (phase_ == Phase::kSelecting) return &Self::Look;
  if (!on_host()) return NextSubmission();
  if (phase_ != Phase::kBuckets) return nullptr;
  if (Written(sent_)) return &Self::PackSent;
  if (returning_.any()) return &Self::TakeNorms;
  if (Written(kept_)) return &Self::PackKept;
  return AllBack() ? &Self::StartNorms : nullptr;
}

bool SparseAggregator::Work() {
  const Piece piece = NextPiece();
  if (piece == nullptr) return false;
  const bool looks = phase_ == Phase::kSelecting;
  (this->*piece)();
  return !looks || Done();
}

void SparseAggregator::Look() {
  if (!MayLook()) return;
  const Result<bool> reached = after().Reached();
  Check(reached.status());
  if (reached.ok() && !reached.value()) return;
  if (reached.ok()) TakeSelection();
  End();
}

std::size_t SparseAggregator::PassLimit() const {
  const bool quiet = launched_ == arrived_;
  return quiet ? pass_chunks_ * kQuietTimes : pass_chunks_;
}

// Packs the next written chunks, as many as a pass may take.
void SparseAggregator::Pack(Queue* queue) {
  const Clock::Time begin = args_.clock->Now();
  const std::size_t first = queue->next;
  std::size_t elements = 0;
  do {
    elements += selector_.chunk(queue->chunks[queue->next++]).count;
  } while (queue->next - first < PassLimit() && Written(*queue));
  const std::span<const std::size_t> chunks =
      std::span(queue->chunks).subspan(first, queue->next - first);
  Check(csc_.Pack(region_, chunks));
  RecordPass("residual", chunks.front(), elements, begin);
}

// Records the timeline's bar of a pass on the host. Those on a device are left
// out, because the host does not see when they end.
void SparseAggregator::RecordPass(const char* name, std::uint64_t id,
                                  std::size_t elements, Clock::Time begin) {
  args_.recorder->Record({"kernel", name, step_, id,
                          elements * SizeOf(args_.pool_dtype), begin,
                          args_.clock->Now()});
}

// Starts the buckets whose chunks are all packed, in order.
void SparseAggregator::Launch() {
  const std::size_t packed_end =
      sent_.next == sent_.chunks.size()
          ? args_.layout->elements()
          : selector_.chunk(sent_.chunks[sent_.next]).begin;
  while (result_.status.ok() && launched_ < buckets_.size() &&
         buckets_[launched_].pool_end <= packed_end) {
    StartBucket(launched_++);
  }
}

void SparseAggregator::StartBucket(std::size_t id) {
  launched_at_.push_back(args_.clock->Now());
  CollectiveCall call =
      BucketCall(args_, buckets_[id], csc_.loss_scale(), step_, id);
  gradientflow::Done done = {&SparseAggregator::OnBucket, this, id};
  if (on_host()) {
    call.feed = returning_.feed(id);
    call.workers = memory_->workers();
  } else {
    call.output = Region(id, *memory_).packed;
    call.dtype = args_.wire_dtype;
    call.keep_scaled = args_.pool_dtype != DType::kFloat32;
    call.extents.clear();
  }
  if (ahead()) {  // The end then tells nothing new, except a failure.
    call.submitted = {&SparseAggregator::OnBucketAhead, this, id};
    done = {&SparseAggregator::OnEnd, this, id};
  }
  args_.collective->Start(call, done);
}

void SparseAggregator::OnBucket(void* self, std::uint64_t bucket,
                                std::uint32_t flags, const Status& status) {
  auto& sparse = *static_cast<SparseAggregator*>(self);
  ++sparse.arrived_;
  sparse.RecordBucket(bucket);
  if (!sparse.on_host()) sparse.back_[bucket] = 1;
  if ((flags & kFlagNonfinite) != 0) sparse.result_.nonfinite = true;
  OnEnd(self, bucket, flags, status);
}

void SparseAggregator::OnEnd(void* self, std::uint64_t, std::uint32_t,
                             const Status& status) {
  auto& sparse = *static_cast<SparseAggregator*>(self);
  if (sparse.result_.status.ok()) sparse.result_.status = status;
}

// Takes the norms of chunks that are back, on the host, where they have been
// exchanged in place.
void SparseAggregator::TakeNorms() {
  const Clock::Time begin = args_.clock->Now();
  const std::span<const std::size_t> chunks = returning_.Take(pass_chunks_);
  Check(csc_.Unpack(region_, chunks));
  RecordPass("norms", chunks.front(),
             chunks.size() * selector_.chunk(chunks.front()).count, begin);
}

void SparseAggregator::RecordBucket(std::size_t id) {
  args_.recorder->Record(
      BucketSpan(args_, buckets_[id], step_, id, launched_at_[id]));
}

void SparseAggregator::StartNorms() {
  phase_ = Phase::kNorms;
  CollectiveCall call;
  call.kind = CollectiveKind::kAllreduce;
  call.output = norms_.get();
  call.count = selector_.chunks();
  call.op = ReduceOp::kSum;
  call.channel = Channel::kGradients;
  call.group = args_.group;
  call.step = step_;
  call.bucket = buckets_.size();
  gradientflow::Done done = {&SparseAggregator::OnNorms, this, 0};
  if (!on_host()) {
    Check(memory_->Send());
    Check(after().Send());
  }
  if (ahead()) {
    call.submitted = {&SparseAggregator::OnNormsAhead, this, 0};
    done = {&SparseAggregator::OnEnd, this, 0};
  }
  args_.collective->Start(call, done);
}

// The sums are the same bits on every rank, so all ranks select alike.
void SparseAggregator::OnNorms(void* self, std::uint64_t, std::uint32_t,
                               const Status& status) {
  auto& sparse = *static_cast<SparseAggregator*>(self);
  sparse.result_.status = status;
  if (status.ok()) sparse.Select();
  if (!sparse.result_.status.ok()) sparse.phase_ = Phase::kDone;
}

void SparseAggregator::Select() {
  phase_ = Phase::kSelecting;
  kernels::TopKArgs args = {};
  args.norms = As<float>(norms_);
  args.always = As<std::uint8_t>(always_);
  args.chunks = selector_.chunks();
  args.k = selector_.CountAt(step_ + 1);
  args.slots = As<std::uint32_t>(slots_[1 - now_]);
  args.selected = As<std::uint8_t>(selected_);
  args.workspace = workspace_.get();
  args.nonfinite = region_.nonfinite;
  Check(after().Receive());
  Check(after().KernelStatus("top_k",
                             after().kernels().top_k(args, after().stream())));
  Check(after().Copy(host_selected_.get(), selected_.get(), args.chunks));
  Check(after().Copy(host_nonfinite_.get(), region_.nonfinite,
                     sizeof(std::uint32_t)));
  if (!on_host()) Check(csc_.Skip(Region(0, after()), region_.nonfinite));
  Check(after().Mark());
}

// Kept chunks are in no bucket. Their norms tell, on every rank alike, whether
// they are finite.
void SparseAggregator::TakeSelection() {
  if (ahead()) NoteBucketsPassed();
  std::uint32_t nonfinite = 0;
  std::memcpy(&nonfinite, host_nonfinite_.get(), sizeof(nonfinite));
  if (nonfinite != 0) result_.nonfinite = true;
  Check(selector_.Restore(
      step_ + 1, {As<std::uint8_t>(host_selected_), selector_.chunks()}));
  Csc::NoteKept(region_, selection_, result_.nonfinite);
  if (on_host() && result_.nonfinite) Check(csc_.Skip(region_));
  finished_ = std::exchange(now_, 1 - now_);
}

Result<std::span<const float>> SparseAggregator::residual() {
  const std::size_t elements = args_.layout->elements();
  if (on_host() && !in_gradients()) {
    return std::span<const float>(region_.residual, elements);
  }
  residual_copy_.resize(elements);
  if (in_gradients()) {
    GF_RETURN_IF_ERROR(csc_.ReadKept(region_, residual_copy_.data()));
  } else {
    GF_RETURN_IF_ERROR(memory_->Copy(residual_copy_.data(), residual_.get(),
                                     residual_bytes()));
    GF_RETURN_IF_ERROR(memory_->Synchronize());
  }
  return std::span<const float>(residual_copy_);
}

Status SparseAggregator::CheckState(
    std::uint64_t next_step, std::span<const std::byte> residual,
    std::span<const std::byte> next_selection) const {
  if (residual.size() != residual_bytes()) {
    return {StatusCode::kInvalidArgument,
            StrCat("the state's residual has ", residual.size(),
                   " bytes, expected ", residual_bytes())};
  }
  return selector_.Check(next_step, SelectionIn(next_selection));
}

Status SparseAggregator::Restore(std::uint64_t next_step, float loss_scale,
                                 std::span<const std::byte> residual,
                                 std::span<const std::byte> next_selection) {
  GF_RETURN_IF_ERROR(selector_.Restore(next_step, SelectionIn(next_selection)));
  const float* kept = region_.residual;
  if (in_gradients()) {
    residual_copy_.resize(args_.layout->elements());
    std::memcpy(residual_copy_.data(), residual.data(), residual.size());
    kept = residual_copy_.data();
    GF_RETURN_IF_ERROR(csc_.WriteKept(region_, kept));
  } else {
    GF_RETURN_IF_ERROR(
        memory_->Copy(residual_.get(), residual.data(), residual.size()));
  }
  (void)csc_.SetScale(loss_scale, loss_scale);
  if (region_.dirty != nullptr) {
    FindDirty(region_, kept, selector_.chunk(0).count);
  }
  return UploadSelection();
}

}  // namespace gradientflow
