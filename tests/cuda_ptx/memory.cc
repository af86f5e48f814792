#include "tests/cuda_ptx/memory.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>

namespace gradientflow::cuda_ptx {
namespace {

constexpr std::align_val_t kAlignment{256};
// So that no allocation begins where another ends.
constexpr std::size_t kGap = 64;

}  // namespace

DeviceMemory& DeviceMemory::Get() {
  static auto* const memory = new DeviceMemory;
  return *memory;
}

void* DeviceMemory::Allocate(std::size_t bytes) {
  void* memory = ::operator new(bytes + kGap, kAlignment);
  std::memset(memory, 0xFF, bytes);
  allocations_[reinterpret_cast<std::uintptr_t>(memory)] = bytes;
  return memory;
}

void DeviceMemory::Free(void* memory) {
  if (allocations_.erase(reinterpret_cast<std::uintptr_t>(memory)) != 1) {
    std::fprintf(stderr, "cuda_ptx: %p was freed, and is not allocated\n",
                 memory);
    std::abort();
  }
  bytes_ = 0;
  ::operator delete(memory, kAlignment);
}

std::vector<std::byte> DeviceMemory::Save() const {
  std::vector<std::byte> saved;
  for (const auto& [begin, size] : allocations_) {
    const auto* bytes = reinterpret_cast<const std::byte*>(begin);  // NOLINT
    saved.insert(saved.end(), bytes, bytes + size);
  }
  return saved;
}

void DeviceMemory::Restore(const std::vector<std::byte>& saved) {
  const std::byte* from = saved.data();
  for (const auto& [begin, size] : allocations_) {
    std::memcpy(reinterpret_cast<void*>(begin), from, size);  // NOLINT
    from += size;
  }
}

bool DeviceMemory::Find(std::uint64_t address, std::size_t bytes) {
  const auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return false;
  const auto& [begin, size] = *std::prev(after);
  if (address - begin >= size || bytes > size - (address - begin)) return false;
  begin_ = begin;
  bytes_ = size;
  return true;
}

}  // namespace gradientflow::cuda_ptx
