#pragma once

#include <functional>
#include <utility>
#include <vector>

namespace gradientflow {

// What callers asked to be told. Filled while the baton is held. NOT
// thread-safe: the baton's holder touches it.
class Completions {
 public:
  struct Task {
    // Run by who drives, once it has let the baton go: it may take locks of the
    // caller's, or start calls.
    std::function<void()> tell;
    // Run after that, with the baton held.
    std::function<void()> told;
  };

  void Add(Task task) { tasks_.push_back(std::move(task)); }
  bool any() const { return !tasks_.empty(); }
  std::vector<Task> Take() { return std::exchange(tasks_, {}); }

 private:
  std::vector<Task> tasks_;
};

}  // namespace gradientflow
