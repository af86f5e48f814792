#pragma once

#include <cstddef>

// What this folder tells sanitizers, as functions that do nothing without them.
#if defined(__SANITIZE_ADDRESS__)
#define GRADIENTFLOW_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GRADIENTFLOW_ASAN 1
#endif
#endif
#ifdef GRADIENTFLOW_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// The thread sanitizer's runtime is found by weak symbols: the files that
// switch stacks and schedule are compiled without the sanitizer, so that it
// sees the kernels' accesses and none of ours.
extern "C" {
// NOLINTBEGIN(readability-identifier-naming,bugprone-reserved-identifier)
__attribute__((weak)) void* __tsan_get_current_fiber();
__attribute__((weak)) void* __tsan_create_fiber(unsigned flags);
__attribute__((weak)) void __tsan_destroy_fiber(void* fiber);
__attribute__((weak)) void __tsan_switch_to_fiber(void* fiber, unsigned flags);
__attribute__((weak)) void __tsan_acquire(void* token);
__attribute__((weak)) void __tsan_release(void* token);
// NOLINTEND(readability-identifier-naming,bugprone-reserved-identifier)
}

namespace gradientflow::cuda_shim {

inline bool UnderTsan() { return __tsan_acquire != nullptr; }

// Everything before a HappensBefore(token) is visible after a later
// HappensAfter(token).
inline void HappensBefore(void* token) {
  if (UnderTsan()) __tsan_release(token);
}
inline void HappensAfter(void* token) {
  if (UnderTsan()) __tsan_acquire(token);
}

// Forbids access to bytes, and allows it again.
inline void Forbid(const void* memory, std::size_t bytes) {
#ifdef GRADIENTFLOW_ASAN
  __asan_poison_memory_region(memory, bytes);
#endif
  static_cast<void>(memory);
  static_cast<void>(bytes);
}
inline void Allow(const void* memory, std::size_t bytes) {
#ifdef GRADIENTFLOW_ASAN
  __asan_unpoison_memory_region(memory, bytes);
#endif
  static_cast<void>(memory);
  static_cast<void>(bytes);
}

// Called before and after a switch of stacks; see common_interface_defs.h.
inline void StartSwitch(void** fake_stack, const void* stack,
                        std::size_t bytes) {
#ifdef GRADIENTFLOW_ASAN
  __sanitizer_start_switch_fiber(fake_stack, stack, bytes);
#endif
  static_cast<void>(fake_stack);
  static_cast<void>(stack);
  static_cast<void>(bytes);
}
inline void FinishSwitch(void* fake_stack, const void** old_stack,
                         std::size_t* old_bytes) {
#ifdef GRADIENTFLOW_ASAN
  __sanitizer_finish_switch_fiber(fake_stack, old_stack, old_bytes);
#endif
  static_cast<void>(fake_stack);
  static_cast<void>(old_stack);
  static_cast<void>(old_bytes);
}

}  // namespace gradientflow::cuda_shim
