#include "hooks.h"

#include <c10/util/Logging.h>

#include <utility>

#include "callbacks.h"

namespace gft {

#ifdef GFT_HAS_HOOKS

void Hooks::AddCompletion(int64_t id, c10d::CompletionHook hook) {
  const std::lock_guard lock(mutex_);
  auto changed = completion_ ? std::make_shared<CompletionHooks>(*completion_)
                             : std::make_shared<CompletionHooks>();
  (*changed)[id] = std::move(hook);
  completion_ = std::move(changed);
  any_completion_.store(true);
}

void Hooks::RemoveCompletion(int64_t id) {
  const std::lock_guard lock(mutex_);
  if (!completion_) return;
  auto changed = std::make_shared<CompletionHooks>(*completion_);
  changed->erase(id);
  any_completion_.store(!changed->empty());
  completion_ = std::move(changed);
}

void Hooks::AddAbort(int64_t id, c10d::AbortHook hook) {
  const std::lock_guard lock(mutex_);
  abort_[id] = std::move(hook);
}

void Hooks::RemoveAbort(int64_t id) {
  const std::lock_guard lock(mutex_);
  abort_.erase(id);
}

void Hooks::Completed(uint64_t key, std::chrono::nanoseconds took) {
  if (!any_completion_.load(std::memory_order_relaxed)) return;
  c10d::CompletionHookArgs args;
  args.completionKey = key;
  args.duration_ms = std::chrono::duration<float, std::milli>(took).count();
  std::shared_ptr<const CompletionHooks> hooks;
  {
    const std::lock_guard lock(mutex_);
    hooks = completion_;
  }
  for (const auto& [id, hook] : *hooks) hook(args);
}

void Hooks::Failed() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(failed_, true)) return;
  for (const auto& [id, hook] : abort_) {
    RunLater([hook = hook] {
      try {
        hook();
      } catch (const std::exception& error) {
        LOG(ERROR) << "GradientFlow: an abort hook failed: " << error.what();
      }
    });
  }
}

#else

void Hooks::Completed(uint64_t /*key*/, std::chrono::nanoseconds /*took*/) {}
void Hooks::Failed() {}

#endif

}  // namespace gft
