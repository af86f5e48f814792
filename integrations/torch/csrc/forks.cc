#include "forks.h"

#include <pthread.h>

namespace gft {
namespace {

std::atomic<uint32_t> forks{0};

const int registered =
    ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });

}  // namespace

uint32_t Forks() {
  static_cast<void>(registered);
  return forks.load(std::memory_order_relaxed);
}

}  // namespace gft
