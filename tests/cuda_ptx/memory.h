#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

// The memory of the device: what was allocated, and nothing beside it.
namespace gradientflow::cuda_ptx {

// One thread uses it at a time.
class DeviceMemory {
 public:
  static DeviceMemory& Get();

  // Filled with NaNs, at a multiple of 256. There is always enough.
  void* Allocate(std::size_t bytes);
  // Aborts if Allocate() did not return `memory`.
  void Free(void* memory);
  // What all of it holds, and back to that. REQUIRES: between the two nothing
  // was allocated or freed.
  std::vector<std::byte> Save() const;
  void Restore(const std::vector<std::byte>& saved);
  // Whether all bytes belong to one allocation.
  bool Has(std::uint64_t address, std::size_t bytes) {
    return address - begin_ < bytes_ && bytes <= bytes_ - (address - begin_)
               ? true
               : Find(address, bytes);
  }

 private:
  bool Find(std::uint64_t address, std::size_t bytes);

  std::map<std::uint64_t, std::size_t> allocations_;
  // The one that was asked for last.
  std::uint64_t begin_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace gradientflow::cuda_ptx
