#include "tests/base/heap_count.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

// The sanitizers bring an operator new of their own, and count by themselves.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define GF_SANITIZED
#include <sanitizer/allocator_interface.h>
#endif
#endif

namespace {

thread_local std::uint64_t allocations = 0;
thread_local int paused = 0;
std::atomic<std::size_t> in_use{0};

void* Counted(std::size_t bytes) {
  if (paused == 0) ++allocations;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) std::abort();
  in_use += malloc_usable_size(memory);
  return memory;
}

void Free(void* memory) {
  if (memory != nullptr) in_use -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) { return Counted(bytes); }
void* operator new[](std::size_t bytes) { return Counted(bytes); }
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, std::size_t) noexcept { Free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { Free(memory); }

namespace gradientflow::testing {

std::uint64_t HeapAllocations() { return allocations; }
std::size_t HeapBytes() {
#ifdef GF_SANITIZED
  return __sanitizer_get_current_allocated_bytes();
#else
  return in_use;
#endif
}
Uncounted::Uncounted() { ++paused; }
Uncounted::~Uncounted() { --paused; }

}  // namespace gradientflow::testing
