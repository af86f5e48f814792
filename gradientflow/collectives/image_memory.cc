#include "gradientflow/collectives/image_memory.h"

#include <algorithm>
#include <utility>

#include "gradientflow/collectives/attach.h"

namespace gradientflow {

void ImageMemory::Release() {
  ring_.SetCapacity(0);
  if (memory_ != nullptr) places_->Detach(memory_.get());
  memory_.reset();
}

Status ImageMemory::Grow(std::size_t bytes) {
  Release();
  bytes = std::max(bytes, usual_bytes_);
  Result<DeviceMemory> memory = device_.Allocate(bytes);
  if (!memory.ok()) return memory.status();
  const auto attached = AttachDeviceMemory(
      device_, *places_, {memory.value().get(), bytes, device_.id()});
  if (!attached.ok()) return attached.status();
  memory_ = std::move(memory).value();
  ring_.SetCapacity(bytes);
  return Status();
}

Result<std::byte*> ImageMemory::Take(std::size_t bytes) {
  bytes = BlockRing::Aligned(bytes);
  if (ring_.empty() && bytes > ring_.capacity()) {
    refused_ = Grow(bytes);
    if (!refused_.ok()) return refused_;
  }
  const auto begin = ring_.Take(bytes);
  return begin ? memory_.get() + *begin : nullptr;
}

void ImageMemory::Give(const std::byte* block) {
  ring_.Give(static_cast<std::size_t>(block - memory_.get()));
}

}  // namespace gradientflow
