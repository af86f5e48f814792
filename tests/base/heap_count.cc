#include "tests/base/heap_count.h"

#include <cstdlib>
#include <new>

namespace {

thread_local std::uint64_t allocations = 0;
thread_local int paused = 0;

void* Counted(std::size_t bytes) {
  if (paused == 0) ++allocations;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return Counted(bytes); }
void* operator new[](std::size_t bytes) { return Counted(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace gradientflow::testing {

std::uint64_t HeapAllocations() { return allocations; }
Uncounted::Uncounted() { ++paused; }
Uncounted::~Uncounted() { --paused; }

}  // namespace gradientflow::testing
