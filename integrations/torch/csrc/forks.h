#pragma once

#include <atomic>
#include <cstdint>

namespace gft {

// How many forks led from the process that loaded this extension to this one.
// What is made at one count is of that process alone: in a fork of it, other
// threads are not there, and locks may be held for ever. Costs a load.
uint32_t Forks();

// A T for each process that asks: a fork does not get what its parent had. No
// T is ever destroyed: threads may be in it when statics go.
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
