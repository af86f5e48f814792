#pragma once

#include <functional>
#include <utility>
#include <vector>

namespace gradientflow {

// The completions that are due. Added and taken by the holder of the baton. NOT
// thread-safe.
class Completions {
 public:
  struct Task {
    // Runs on the driving thread after it has released the baton, because it
    // may take locks of the caller or start calls.
    std::function<void()> tell;
    // Runs after that, with the baton held.
    std::function<void()> told;
  };

  void Add(Task task) { tasks_.push_back(std::move(task)); }
  bool any() const { return !tasks_.empty(); }
  std::vector<Task> Take() { return std::exchange(tasks_, {}); }

 private:
  std::vector<Task> tasks_;
};

}  // namespace gradientflow
