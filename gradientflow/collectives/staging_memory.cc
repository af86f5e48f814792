#include "gradientflow/collectives/staging_memory.h"

#include <algorithm>
#include <utility>

namespace gradientflow {
namespace {

constexpr std::size_t kAlignment = 256;
// Vector kernels may read this many bytes past the end of an array.
constexpr std::size_t kSlack = 64;

}  // namespace

void StagingMemory::Release() {
  locked_.reset();
  own_.reset();
  if (window_.data != nullptr) arena_->Free(std::exchange(window_, {}));
  data_ = nullptr;
  capacity_ = 0;
}

Status StagingMemory::Grow(std::size_t bytes) {
  Release();
  bytes = std::max(bytes, usual_bytes_);
  if (arena_ == nullptr) {
    Result<DeviceMemory> memory = device_.AllocatePinned(bytes + kSlack);
    if (!memory.ok()) return memory.status();
    own_ = std::move(memory).value();
    data_ = own_.get();
  } else {
    Result<BufferView> window = arena_->Allocate(bytes + kSlack);
    if (!window.ok()) return window.status();
    window_ = window.value();
    Result<std::shared_ptr<void>> locked =
        device_.RegisterHost(window_.data, window_.bytes);
    if (!locked.ok()) {
      Release();
      return locked.status();
    }
    locked_ = std::move(locked).value();
    data_ = window_.data;
  }
  capacity_ = bytes;
  return Status();
}

// The ring: blocks_ are in the order of taking, so free memory begins at the
// end of the last block. It goes on to the end of the memory, or, once the ring
// has wrapped around, to the beginning of the first block.
Result<std::byte*> StagingMemory::Take(std::size_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  std::size_t begin = 0;
  if (blocks_.empty()) {
    if (bytes > capacity_ || data_ == nullptr) GF_RETURN_IF_ERROR(Grow(bytes));
  } else {
    const std::size_t oldest = blocks_.front().begin;
    const bool wrapped = blocks_.back().begin < oldest;
    begin = blocks_.back().end;
    const std::size_t end = wrapped ? oldest : capacity_;
    if (bytes > end - begin) {
      if (wrapped || bytes > oldest) return nullptr;
      begin = 0;
    }
  }
  blocks_.push_back({begin, begin + bytes, false});
  return data_ + begin;
}

void StagingMemory::Give(const std::byte* block) {
  const auto begin = static_cast<std::size_t>(block - data_);
  const auto taken = std::find_if(
      blocks_.begin(), blocks_.end(),
      [&](const Block& b) { return b.begin == begin && !b.given_back; });
  taken->given_back = true;
  while (!blocks_.empty() && blocks_.front().given_back) {
    blocks_.erase(blocks_.begin());
  }
}

}  // namespace gradientflow
