#include <algorithm>
#include <cstring>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/csc/device_sparse.h"
#include "gradientflow/csc/sparse.h"

// The selection, and the memory, of a DeviceSparseAggregator.
namespace gradientflow {

Result<std::unique_ptr<DeviceSparseAggregator>> DeviceSparseAggregator::Create(
    const AggregatorParts& parts, const DeviceSparseConfig& config,
    ChunkSelector selector, const std::vector<std::size_t>& always_dense) {
  std::unique_ptr<DeviceSparseAggregator> made(
      new DeviceSparseAggregator(parts, config, std::move(selector)));
  GF_RETURN_IF_ERROR(made->Allocate(always_dense));
  return made;
}

// Nothing of this memory may be in use on the device any more.
DeviceSparseAggregator::~DeviceSparseAggregator() {
  (void)config_.stream->Synchronize();
}

Status DeviceSparseAggregator::Allocate(
    const std::vector<std::size_t>& always_dense) {
  const std::size_t chunks = selector_.chunks();
  const struct {
    DeviceMemory* memory;
    std::size_t bytes;
    bool pinned;
  } wanted[] = {
      {&residual_, parts_.layout->elements() * sizeof(float), false},
      {&slots_[0], chunks * sizeof(std::uint32_t), false},
      {&slots_[1], chunks * sizeof(std::uint32_t), false},
      {&selected_, chunks, false},
      {&always_, chunks, false},
      {&norms_, chunks * sizeof(float), false},
      {&workspace_, kernels::TopKWorkspaceBytes(chunks), false},
      {&nonfinite_, sizeof(std::uint32_t), false},
      {&host_slots_, chunks * sizeof(std::uint32_t), true},
      {&host_selected_, chunks, true},
      {&host_nonfinite_, sizeof(std::uint32_t), true},
  };
  for (const auto& want : wanted) {
    Result<DeviceMemory> memory =
        want.pinned ? config_.device->AllocatePinned(want.bytes)
                    : config_.device->Allocate(want.bytes);
    if (!memory.ok()) return memory.status();
    *want.memory = std::move(memory).value();
  }
  Result<std::unique_ptr<Event>> event = config_.device->NewEvent();
  if (!event.ok()) return event.status();
  copied_ = std::move(event).value();
  auto* always = As<std::uint8_t>(host_selected_);
  std::memset(always, 0, chunks);
  for (std::size_t c : always_dense) always[c] = 1;
  GF_RETURN_IF_ERROR(config_.stream->Copy(always_.get(), always, chunks));
  GF_RETURN_IF_ERROR(config_.stream->Synchronize());
  return UploadSlots();
}

// Room for what a step sends. The first steps send all; once they send much
// less, the rest of the memory goes back.
Status DeviceSparseAggregator::EnsurePacked(std::size_t bytes) {
  if (packed_bytes_ >= bytes && packed_bytes_ / 2 <= bytes) return Status();
  GF_RETURN_IF_ERROR(config_.stream->Synchronize());
  packed_.reset();
  packed_bytes_ = 0;
  Result<DeviceMemory> memory = config_.device->Allocate(bytes);
  if (!memory.ok()) return memory.status();
  packed_ = std::move(memory).value();
  packed_bytes_ = bytes;
  return Status();
}

// The selector's choice, as slots on the device.
Status DeviceSparseAggregator::UploadSlots() {
  const std::vector<std::uint8_t>& selected = selector_.selected();
  auto* slots = As<std::uint32_t>(host_slots_);
  std::uint32_t next = 0;
  for (std::size_t c = 0; c < selected.size(); ++c) {
    slots[c] = selected[c] != 0 ? next++ : kernels::kNotSent;
  }
  GF_RETURN_IF_ERROR(config_.stream->Copy(
      slots_[now_].get(), slots, selected.size() * sizeof(std::uint32_t)));
  return config_.stream->Synchronize();
}

void DeviceSparseAggregator::SelectOnDevice() {
  phase_ = Phase::kSelecting;
  const std::size_t chunks = selector_.chunks();
  kernels::TopKArgs args = {};
  args.norms = As<float>(norms_);
  args.always = As<std::uint8_t>(always_);
  args.chunks = chunks;
  args.k = selector_.CountAt(step_ + 1);
  args.slots = As<std::uint32_t>(slots_[1 - now_]);
  args.selected = As<std::uint8_t>(selected_);
  args.workspace = workspace_.get();
  args.nonfinite = As<std::uint32_t>(nonfinite_);
  CheckKernel("top_k", kernels_.top_k(args, config_.stream->native()));
  Check(config_.stream->Copy(host_selected_.get(), selected_.get(), chunks));
  Check(config_.stream->Copy(host_nonfinite_.get(), nonfinite_.get(),
                             sizeof(std::uint32_t)));
  Check(config_.stream->Record(copied_.get()));
}

void DeviceSparseAggregator::TakeSelection() {
  std::uint32_t nonfinite = 0;
  std::memcpy(&nonfinite, host_nonfinite_.get(), sizeof(nonfinite));
  if (nonfinite != 0) result_.nonfinite = true;
  Check(selector_.Restore(
      step_ + 1, {As<std::uint8_t>(host_selected_), selector_.chunks()}));
  phase_ = Phase::kDone;
  if (result_.nonfinite && result_.status.ok()) Restart();
  finished_ = std::exchange(now_, 1 - now_);
}

// The step will be skipped: what was sent, and is finite, goes back to the
// residuals, each rank an equal part, so that it is sent again.
void DeviceSparseAggregator::Restart() {
  phase_ = Phase::kRestoring;
  kernels::ChunkRestoreArgs args = {};
  args.range = Range(0, selector_.chunks());
  args.slots = As<std::uint32_t>(slots_[now_]);
  args.grads = parts_.pool;
  args.type = parts_.pool_dtype;
  args.residual = As<float>(residual_);
  const float scaled = loss_scale_ / result_.gradient_scale;
  args.scale = parts_.reduce == ReduceOp::kMean
                   ? scaled
                   : scaled / static_cast<float>(parts_.collective->size());
  CheckKernel("chunk_restore",
              kernels_.chunk_restore(args, config_.stream->native()));
  Check(config_.stream->Record(copied_.get()));
}

Result<std::span<const float>> DeviceSparseAggregator::residual() {
  residual_copy_.resize(parts_.layout->elements());
  GF_RETURN_IF_ERROR(
      config_.stream->Copy(residual_copy_.data(), residual_.get(),
                           residual_copy_.size() * sizeof(float)));
  GF_RETURN_IF_ERROR(config_.stream->Synchronize());
  return std::span<const float>(residual_copy_);
}

Status DeviceSparseAggregator::CheckState(
    std::uint64_t next_step, std::span<const std::byte> residual,
    std::span<const std::byte> next_selection) const {
  return CheckSparseState(selector_, residual_bytes(), next_step, residual,
                          next_selection);
}

Status DeviceSparseAggregator::Restore(
    std::uint64_t next_step, float loss_scale,
    std::span<const std::byte> residual,
    std::span<const std::byte> next_selection) {
  GF_RETURN_IF_ERROR(selector_.Restore(next_step, SelectionIn(next_selection)));
  GF_RETURN_IF_ERROR(
      config_.stream->Copy(residual_.get(), residual.data(), residual.size()));
  loss_scale_ = loss_scale;
  return UploadSlots();
}

}  // namespace gradientflow
