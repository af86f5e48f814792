#include "transports/shm/fifo.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

Status Impossible(const char* which, std::uint64_t low, std::uint64_t high,
                  std::uint64_t seen) {
  return Status(StatusCode::kDataLoss,
                StrCat("shared-memory FIFO: expected a ", which, " in [", low,
                       ", ", high, "], seen ", seen));
}

}  // namespace

std::size_t FifoCapacity(std::size_t fifo_bytes) {
  return std::bit_ceil(std::clamp(fifo_bytes, kMinFifoBytes, kMaxFifoBytes));
}

Status FifoWriter::Refresh() {
  const std::uint64_t seen =
      memory_.control->tail.load(std::memory_order_seq_cst);
  // Compared as differences from the last good value, so that wrapping is
  // harmless.
  if (seen - tail_ > published_ - tail_) {
    return Impossible("tail", tail_, published_, seen);
  }
  tail_ = seen;
  return Status();
}

void FifoWriter::Write(std::span<const std::byte> bytes) {
  assert(bytes.size() <= room());
  if (bytes.empty()) return;
  const std::size_t at = head_ & (memory_.capacity - 1);
  const std::size_t first = std::min(bytes.size(), memory_.capacity - at);
  std::memcpy(memory_.data + at, bytes.data(), first);
  if (first < bytes.size()) {
    std::memcpy(memory_.data, bytes.data() + first, bytes.size() - first);
  }
  head_ += bytes.size();
}

void FifoWriter::Publish() {
  if (published_ == head_) return;
  published_ = head_;
  memory_.control->head.store(head_, std::memory_order_seq_cst);
}

Status FifoReader::Refresh() {
  const std::uint64_t seen =
      memory_.control->head.load(std::memory_order_seq_cst);
  // The head may neither go back nor exceed what this side has released.
  if (seen - head_ > released_ + memory_.capacity - head_) {
    return Impossible("head", head_, released_ + memory_.capacity, seen);
  }
  head_ = seen;
  return Status();
}

void FifoReader::Read(std::span<std::byte> into) {
  assert(into.size() <= available());
  if (into.empty()) return;
  const std::size_t at = tail_ & (memory_.capacity - 1);
  const std::size_t first = std::min(into.size(), memory_.capacity - at);
  std::memcpy(into.data(), memory_.data + at, first);
  if (first < into.size()) {
    std::memcpy(into.data() + first, memory_.data, into.size() - first);
  }
  tail_ += into.size();
}

void FifoReader::Release() {
  if (released_ == tail_) return;
  released_ = tail_;
  memory_.control->tail.store(tail_, std::memory_order_seq_cst);
}

}  // namespace gradientflow
