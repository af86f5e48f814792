#include "tests/rdma/fake_order.h"

#include <cstring>

#include "gradientflow/base/thread_sanitizer.h"

#if defined(GF_THREAD_SANITIZER)
#include <sanitizer/tsan_interface.h>
#endif

namespace gradientflow::fake_verbs {

#if defined(GF_THREAD_SANITIZER)

// Between two switches of fibers, nothing may be done but calls of the runtime:
// what the compiler adds to other code would count as the fiber's.
#define GF_NOT_INSTRUMENTED __attribute__((no_sanitize("thread")))

namespace {
constexpr unsigned kNoOrder = __tsan_switch_to_fiber_no_sync;
}  // namespace

void HideBegin() {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
}

void HideEnd() {
  AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}

void Release(const void* address) {
  AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  __tsan_release(const_cast<void*>(address));
  AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
}

void Acquire(const void* address) {
  AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  __tsan_acquire(const_cast<void*>(address));
  AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
}

Order::Order() : fiber_(__tsan_create_fiber(0)) {}
Order::~Order() { __tsan_destroy_fiber(fiber_); }

GF_NOT_INSTRUMENTED void Order::Release(const void* address) {
  void* const here = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(fiber_, kNoOrder);
  __tsan_release(const_cast<void*>(address));
  __tsan_switch_to_fiber(here, kNoOrder);
}

GF_NOT_INSTRUMENTED void Order::Acquire(const void* address) {
  void* const here = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(fiber_, kNoOrder);
  __tsan_acquire(const_cast<void*>(address));
  __tsan_switch_to_fiber(here, kNoOrder);
}

GF_NOT_INSTRUMENTED void Order::Copy(void* to, const void* from,
                                     std::size_t bytes) {
  void* const here = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(fiber_, kNoOrder);
  std::memcpy(to, from, bytes);
  __tsan_switch_to_fiber(here, kNoOrder);
}

#else

void HideBegin() {}
void HideEnd() {}
void Release(const void* /*address*/) {}
void Acquire(const void* /*address*/) {}

Order::Order() = default;
Order::~Order() { fiber_ = nullptr; }
void Order::Release(const void* /*address*/) {}
void Order::Acquire(const void* /*address*/) {}
void Order::Copy(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

#endif

}  // namespace gradientflow::fake_verbs
