#pragma once

#include <cstdint>

#include "gradientflow/base/status.h"

namespace gradientflow {

// Told exactly once that an operation has given back every buffer it was lent,
// and how it ended. A plain value: the hot path allocates nothing for it.
// Never runs inside the call that took it; runs on the thread that drives the
// fabric; must not block and must not throw.
struct Done {
  void (*run)(void* self, std::uint64_t cookie, std::uint32_t flags,
              const Status& status) = nullptr;
  void* self = nullptr;
  std::uint64_t cookie = 0;

  // `flags`: those the message carried (see transports/link.h); 0 for a send.
  void operator()(const Status& status, std::uint32_t flags = 0) const {
    if (run != nullptr) run(self, cookie, flags, status);
  }
};

}  // namespace gradientflow
