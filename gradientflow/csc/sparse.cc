#include "gradientflow/csc/sparse.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/csc/sparse_device.h"
#include "gradientflow/csc/sparse_host.h"
#include "transports/wire.h"

// One step, in the phases of SparseAggregator::Phase:
//
//   kBuckets    chunks are packed as they are written, and a bucket is
//               exchanged once all of its chunks are packed; what is back is
//               unpacked, and its norms are taken
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

std::span<const std::uint8_t> SelectionIn(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

}  // namespace

Result<std::unique_ptr<SparseAggregator>> SparseAggregator::Create(
    const AggregatorArgs& args, const CscOptions& config,
    CscMemories memories) {
  Result<ChunkSelector> selector = ChunkSelector::Create(config.selection);
  if (!selector.ok()) return selector.status();
  std::unique_ptr<SparseAggregator> made;
  if (memories.before->asynchronous()) {
    made = std::make_unique<DeviceSparse>(
        args, config, std::move(selector).value(), std::move(memories));
  } else {
    made = std::make_unique<HostSparse>(
        args, config, std::move(selector).value(), std::move(memories));
  }
  GF_RETURN_IF_ERROR(made->Allocate());
  return made;
}

SparseAggregator::SparseAggregator(const AggregatorArgs& args,
                                   const CscOptions& config,
                                   ChunkSelector selector, CscMemories memories)
    : args_(args),
      csc_(WithShare(config, args)),
      selector_(std::move(selector)),
      bucket_bytes_(args.bucket_bytes),
      memory_(std::move(memories.before)),
      memory_after_(std::move(memories.after)) {}

Status SparseAggregator::Allocate() {
  const std::size_t chunks = selector_.chunks();
  const bool has_dirty = !memory_->asynchronous() || in_gradients();
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
  GF_RETURN_IF_ERROR(
      memory_->Copy(always_.get(), selector_.always_dense().data(), chunks));
  GF_RETURN_IF_ERROR(UploadTensors());
  return UploadSelection();
}

// If kept gradients read as zero, the gradients after a step are the same on
// every rank, and a caller need not ask the host about them. So after a skipped
// step they show by themselves that they are not to be used: they read as NaN,
// on every rank.
Status SparseAggregator::UploadTensors() {
  if (!csc_.config().zero_kept) return Status();
  std::vector<kernels::TensorRun> runs;
  for (const TensorPart& part :
       args_.layout->Parts({0, args_.layout->elements()})) {
    runs.push_back({part.pool_begin, part.pool_begin + part.count});
  }
  const std::size_t bytes = runs.size() * sizeof(kernels::TensorRun);
  Result<DeviceMemory> memory = memory_->Allocate(bytes);
  if (!memory.ok()) return memory.status();
  tensors_ = std::move(memory).value();
  region_.hidden = As<kernels::TensorRun>(tensors_);
  region_.hidden_count = runs.size();
  GF_RETURN_IF_ERROR(memory_->Copy(tensors_.get(), runs.data(), bytes));
  return memory_->Synchronize();
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
  buckets_ = PlanSparse({args_.layout->elements(), width(), selection_},
                        bucket_bytes_, SizeOf(args_.wire_dtype));
  exchanged_ = ExtentsOf(buckets_);
  region_.slots = As<std::uint32_t>(slots_[now_]);
  region_.nonfinite = As<std::uint32_t>(nonfinite_[now_]);
  Check(memory_->Copy(region_.nonfinite, host_zero_.get(),
                      sizeof(std::uint32_t)));
  Check(BeginBuckets());
  if (args_.wire_times != nullptr) {
    Check(args_.wire_times->Begin(buckets_.size() + 1));  // And the norms.
  }
  written_end_ = launched_ = 0;
  launched_at_.clear();
  phase_ = Phase::kBuckets;
  result_.buckets = buckets_.size();
  result_.chunks = selector_.chunks();
  result_.selected_chunks = selector_.selected_count();
}

SparseAggregator::Piece SparseAggregator::NextPiece() const {
  if (phase_ == Phase::kDone) return nullptr;
  if (!result_.status.ok()) return &SparseAggregator::End;
  if (phase_ == Phase::kSelecting) return &SparseAggregator::Look;
  return NextOfBuckets();
}

bool SparseAggregator::Work() {
  const Piece piece = NextPiece();
  if (piece == nullptr) return false;
  const bool looks = phase_ == Phase::kSelecting;
  (this->*piece)();
  return !looks || Done();
}

void SparseAggregator::Look() {
  if (memory_->asynchronous() && !looks_.Due(args_.clock->Now())) return;
  const Result<bool> reached = after().Reached();
  Check(reached.status());
  if (reached.ok() && !reached.value()) return;
  if (reached.ok()) TakeSelection();
  End();
}

void SparseAggregator::RecordPass(const char* name,
                                  std::span<const std::size_t> chunks,
                                  Clock::Time begin) {
  std::size_t elements = 0;
  for (const std::size_t c : chunks) elements += selector_.chunk(c).count;
  args_.recorder->Record({"kernel", name, step_, chunks.front(),
                          elements * SizeOf(args_.pool_dtype), begin,
                          args_.clock->Now()});
}

void SparseAggregator::RecordBucket(std::size_t id) {
  args_.recorder->Record(
      BucketSpan(args_, buckets_[id], step_, id, launched_at_[id]));
}

void SparseAggregator::StartBucket() {
  const std::size_t id = launched_++;
  launched_at_.push_back(args_.clock->Now());
  CollectiveCall call =
      BucketCall(args_, buckets_[id], csc_.loss_scale(), step_, id);
  Adapt(id, &call);
  const bool ahead = call.submitted.run != nullptr;
  args_.collective->Start(call, {ahead ? &OnEnd : &OnBucket, this, id});
}

void SparseAggregator::OnBucket(void* self, std::uint64_t bucket,
                                std::uint32_t flags, const Status& status) {
  auto& sparse = *static_cast<SparseAggregator*>(self);
  sparse.RecordBucket(bucket);
  sparse.BucketIsBack(bucket, (flags & kFlagNonfinite) != 0);
  OnEnd(self, bucket, flags, status);
}

void SparseAggregator::OnEnd(void* self, std::uint64_t, std::uint32_t,
                             const Status& status) {
  auto& sparse = *static_cast<SparseAggregator*>(self);
  if (sparse.result_.status.ok()) sparse.result_.status = status;
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
  call.submitted = NormsSubmitted();
  const bool ahead = call.submitted.run != nullptr;
  args_.collective->Start(call, {ahead ? &OnEnd : &OnNorms, this, 0});
}

// The sums are the same bits on every rank, so all ranks select alike.
void SparseAggregator::OnNorms(void* self, std::uint64_t, std::uint32_t,
                               const Status& status) {
  auto& sparse = *static_cast<SparseAggregator*>(self);
  sparse.result_.status = status;
  if (status.ok()) sparse.Select();
  if (!sparse.result_.status.ok()) sparse.phase_ = Phase::kDone;
}

// Kept chunks are in no bucket. Their norms tell, on every rank alike, whether
// they are finite.
void SparseAggregator::Select() {
  phase_ = Phase::kSelecting;
  looks_.Begin();
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
  if (!result_.status.ok()) return;
  Check(after().KernelStatus("top_k",
                             after().kernels().top_k(args, after().stream())));
  Check(after().Copy(host_selected_.get(), selected_.get(), args.chunks));
  Check(after().Copy(host_nonfinite_.get(), region_.nonfinite,
                     sizeof(std::uint32_t)));
  CscRegion pool = region_;
  pool.memory = &after();
  Check(csc_.Skip(pool, region_.nonfinite));
  Check(after().Mark());
}

void SparseAggregator::TakeSelection() {
  StepIsOver();
  std::uint32_t nonfinite = 0;
  std::memcpy(&nonfinite, host_nonfinite_.get(), sizeof(nonfinite));
  if (nonfinite != 0) result_.nonfinite = true;
  Check(selector_.Restore(
      step_ + 1, {As<std::uint8_t>(host_selected_), selector_.chunks()}));
  Csc::NoteKept(region_, selection_, result_.nonfinite);
  finished_ = std::exchange(now_, 1 - now_);
}

Result<std::span<const float>> SparseAggregator::residual() {
  const std::size_t elements = args_.layout->elements();
  if (!memory_->asynchronous() && !in_gradients()) {
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
    FindDirty(region_, kept, width());
  }
  return UploadSelection();
}

}  // namespace gradientflow
