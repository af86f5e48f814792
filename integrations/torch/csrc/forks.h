#pragma once

#include <atomic>
#include <cstdint>

namespace gft {

// The number of forks between the process that loaded this extension and this
// one. An object belongs to the process with the count at which it was made: in
// a fork of it, the other threads do not exist and locks may be held for ever.
// Costs a load.
uint32_t Forks();

// Holds one T per process: a fork does not inherit its parent's. No T is ever
// destroyed, since threads may still use it when static objects are destroyed.
template <typename T>
class OfThisProcess {
 public:
  T& Get() {
    Made* made = made_.load(std::memory_order_acquire);
    while (made == nullptr || made->forks != Forks()) {
      auto* fresh = new Made{Forks(), made, {}};
      if (made_.compare_exchange_strong(made, fresh)) return fresh->object;
      delete fresh;
    }
    return made->object;
  }

 private:
  struct Made {
    uint32_t forks;
    Made* inherited;
    T object;
  };
  std::atomic<Made*> made_{nullptr};
};

}  // namespace gft
