#include "operations.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "coalesced.h"

namespace gft {

void Operations::SetTimeout(Milliseconds timeout) {
  timeout_ms_.store(
      std::clamp(timeout, Milliseconds(1), kLongestTimeout).count());
}

c10::intrusive_ptr<Work> Operations::Begin(const Kind& kind,
                                           Milliseconds timeout, Tensors inputs,
                                           Tensors results, bool counts) {
  TORCH_CHECK_WITH(DistBackendError, !closed_.load(),
                   "GradientFlow: ", kind.title,
                   " on a process group that was shut down");
  Work::Facts facts;
  facts.type = kind.type;
  facts.title = kind.title;
  facts.detail = kind.detail;
  facts.sequence = counts ? sequence_.fetch_add(1) + 1 : sequence_.load();
  facts.timeout = timeout > kNoTimeout ? std::min(timeout, kLongestTimeout)
                                       : this->timeout();
  return c10::make_intrusive<Work>(group_, facts, std::move(inputs),
                                   std::move(results));
}

void Operations::StartCoalescing() {
  const std::lock_guard lock(mutex_);
  // If an exception ended the block, the operations in it go on by themselves.
  coalesced_.clear();
  coalescing_.store(true);
}

WorkPtr Operations::EndCoalescing() {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(coalescing_.exchange(false),
              "GradientFlow: endCoalescing() without startCoalescing()");
  return c10::make_intrusive<Coalesced>(rank(), std::exchange(coalesced_, {}));
}

WorkPtr Operations::Add(WorkPtr work) {
  if (coalescing_.load(std::memory_order_relaxed)) {
    const std::lock_guard lock(mutex_);
    if (coalescing_.load()) coalesced_.push_back(work);
  }
  return work;
}

}  // namespace gft
