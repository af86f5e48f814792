#include "hook.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "hook_profile.h"

namespace gft {
namespace {

// The Reducer owns its hook; Python's handle needs it too.
class Shared final : public c10d::CommHookInterface {
 public:
  Shared(std::shared_ptr<Hook> hook, std::shared_ptr<HookProfile> profile)
      : hook_(std::move(hook)), profile_(std::move(profile)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(
      c10d::GradBucket& bucket) override {
    if (profile_ == nullptr) return hook_->Run(bucket);
    profile_->BeforeRun(bucket);
    auto result = hook_->Run(bucket);
    profile_->AfterRun(bucket);
    return result;
  }
  at::Tensor parseHookResult(const c10::IValue& result) override {
    at::Tensor buffer = hook_->Finish(result);
    if (profile_ != nullptr) profile_->AfterFinish();
    return buffer;
  }

 private:
  const std::shared_ptr<Hook> hook_;
  const std::shared_ptr<HookProfile> profile_;
};

}  // namespace

void Register(c10d::Reducer& reducer, std::shared_ptr<Hook> hook,
              std::shared_ptr<HookProfile> profile) {
  // The times at which gradients became ready: 0 before the first backward.
  const std::vector<int64_t> ready = reducer.get_backward_stats();
  TORCH_CHECK(
      std::all_of(ready.begin(), ready.end(), [](auto t) { return t == 0; }),
      "register(): this DistributedDataParallel has run backward already; "
      "register the hook right after it is made");
  reducer.register_comm_hook(
      std::make_unique<Shared>(std::move(hook), std::move(profile)));
}

void CheckDense(const c10d::GradBucket& bucket, const char* hook) {
  const at::Tensor& buffer = bucket.getBuffer();
  TORCH_CHECK_VALUE(
      buffer.layout() == at::kStrided && buffer.is_contiguous(), "the ", hook,
      " hook: bucket ", bucket.getIndex(), " has gradients of layout ",
      buffer.layout(),
      ", expected dense ones: an Embedding with sparse=True? Use sparse=False");
}

}  // namespace gft
