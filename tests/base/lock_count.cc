#include "tests/base/lock_count.h"

#include <dlfcn.h>
#include <pthread.h>

namespace {

thread_local std::uint64_t locks = 0;

using Lock = int (*)(pthread_mutex_t*);
Lock Real() {
  static const auto real =
      reinterpret_cast<Lock>(::dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  return real;
}

}  // namespace

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  ++locks;
  return Real()(mutex);
}

namespace gradientflow::testing {

std::uint64_t LocksTaken() { return locks; }

}  // namespace gradientflow::testing
