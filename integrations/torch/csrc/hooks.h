#pragma once

#include <torch/version.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>

// From torch 2.15 on.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
#define GFT_HAS_HOOKS 1
#endif

namespace gft {

// What torch's flight recorder, or another observer, wants to know of a group's
// operations, if this version of torch has such hooks. Thread-safe.
class Hooks {
 public:
#ifdef GFT_HAS_HOOKS
  void AddCompletion(int64_t id, c10d::CompletionHook hook);
  void RemoveCompletion(int64_t id);
  void AddAbort(int64_t id, c10d::AbortHook hook);
  void RemoveAbort(int64_t id);
#endif

  // An operation has succeeded. Called on the thread that drives.
  void Completed(uint64_t key, std::chrono::nanoseconds took);
  // An operation has failed. The hooks run once, soon, and on another thread,
  // since they may take long and need Python.
  void Failed();

 private:
  std::mutex mutex_;
  std::atomic<bool> any_completion_{false};
#ifdef GFT_HAS_HOOKS
  // The map is replaced, never changed, since the hooks run without the mutex.
  using CompletionHooks = std::map<int64_t, c10d::CompletionHook>;
  std::shared_ptr<const CompletionHooks> completion_;
  std::map<int64_t, c10d::AbortHook> abort_;
#endif
  bool failed_ = false;
};

}  // namespace gft
