#pragma once

#include <cstdint>

#include "gradientflow/base/status.h"

namespace gradientflow {

// The completion of an operation. It runs exactly once, when the operation has
// given back every buffer that it was lent, and says how the operation ended. A
// plain value: the hot path allocates nothing for it. It never runs inside the
// call that took it. It runs on the thread that drives the fabric, and must
// neither block nor throw.
struct Done {
  void (*run)(void* self, std::uint64_t cookie, std::uint32_t flags,
              const Status& status) = nullptr;
  void* self = nullptr;
  std::uint64_t cookie = 0;

  // `flags` are those that the message carried (see transports/wire.h); 0 for a
  // send.
  void operator()(const Status& status, std::uint32_t flags = 0) const {
    if (run != nullptr) run(self, cookie, flags, status);
  }
};

}  // namespace gradientflow
