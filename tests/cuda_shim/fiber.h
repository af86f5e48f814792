#pragma once

#include <cstddef>

namespace gradientflow::cuda_shim {

// A function with a stack of its own, which runs piece by piece on the thread
// that calls Resume(). Sanitizers are informed. A fiber can be used again and
// again: making one costs more than running one.
class Fiber {
 public:
  Fiber();
  ~Fiber();  // REQUIRES: Done().
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Calls run(argument) at the next Resume(). REQUIRES: Done().
  void Start(void (*run)(void*), void* argument);
  // Runs until Pause() or the end of `run`. REQUIRES: !Done().
  void Resume();
  // Called by the function on this fiber: returns to Resume()'s caller.
  void Pause();
  bool Done() const { return run_ == nullptr; }

 private:
  static void Main(Fiber* fiber);
  void SwitchIn();

  void (*run_)(void*) = nullptr;
  void* argument_ = nullptr;
  bool quit_ = false;
  void* mapping_;
  void* stack_pointer_;
  void* caller_pointer_ = nullptr;
  // For the sanitizers.
  void* fake_stack_ = nullptr;
  void* caller_fake_stack_ = nullptr;
  const void* caller_stack_ = nullptr;
  std::size_t caller_stack_bytes_ = 0;
  void* tsan_fiber_ = nullptr;
  void* tsan_caller_ = nullptr;
};

}  // namespace gradientflow::cuda_shim
