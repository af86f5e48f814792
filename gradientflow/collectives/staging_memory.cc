#include "gradientflow/collectives/staging_memory.h"

#include <algorithm>
#include <utility>

namespace gradientflow {
namespace {

// Vector kernels may read this many bytes past the end of an array.
constexpr std::size_t kSlack = 64;

}  // namespace

void StagingMemory::Release() {
  locked_.reset();
  own_.reset();
  if (const BufferView window = std::exchange(window_, {}); window.data) {
    in_places_ ? places_->Free(window) : arena_->Free(window);
  }
  data_ = nullptr;
  ring_.SetCapacity(0);
}

Status StagingMemory::Grow(std::size_t bytes) {
  Release();
  bytes = std::max(bytes, usual_bytes_);
  GF_RETURN_IF_ERROR(GrowWindow(bytes + kSlack));
  if (data_ == nullptr) {
    Result<DeviceMemory> memory = device_.AllocatePinned(bytes + kSlack);
    if (!memory.ok()) return memory.status();
    own_ = std::move(memory).value();
    data_ = own_.get();
  }
  ring_.SetCapacity(bytes);
  return Status();
}

// Peers on this host must find the memory in the arena. What lies out of the
// card's reach costs a copy, and no more.
Status StagingMemory::GrowWindow(std::size_t bytes) {
  if (arena_ != nullptr) {
    const Result<BufferView> window = arena_->Allocate(bytes);
    if (!window.ok()) return window.status();
    in_places_ = false;
    return Lock(window.value());
  }
  if (places_ == nullptr) return Status();
  const Result<BufferView> window = places_->Allocate(bytes);
  unreached_ = window.status();
  if (!window.ok()) return Status();
  in_places_ = true;
  unreached_ = Lock(window.value());
  return Status();
}

Status StagingMemory::Lock(BufferView window) {
  window_ = window;
  Result<std::shared_ptr<void>> locked =
      device_.RegisterHost(window.data, window.bytes);
  if (!locked.ok()) {
    Release();
    return locked.status();
  }
  locked_ = std::move(locked).value();
  data_ = window.data;
  return Status();
}

Result<std::byte*> StagingMemory::Take(std::size_t bytes) {
  bytes = BlockRing::Aligned(bytes);
  const bool too_small = bytes > ring_.capacity() || data_ == nullptr;
  if (ring_.empty() && too_small) GF_RETURN_IF_ERROR(Grow(bytes));
  const auto begin = ring_.Take(bytes);
  return begin ? data_ + *begin : nullptr;
}

void StagingMemory::Give(const std::byte* block) {
  ring_.Give(static_cast<std::size_t>(block - data_));
}

}  // namespace gradientflow
