#include "hook_profile.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "forks.h"
#include "library.h"

namespace gft {
namespace {

// The one type and device of all gradients.
int32_t CommonType(const ProfiledModel& model) {
  const at::Tensor& first = model.parameters.front();
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    const at::Tensor& each = model.parameters[i];
    TORCH_CHECK_VALUE(
        each.scalar_type() == first.scalar_type() &&
            each.device() == first.device(),
        "GRADIENTFLOW_PROFILE: expected gradients of one type on one device; '",
        model.names[i], "' is ", each.scalar_type(), " on ", each.device(),
        ", '", model.names.front(), "' ", first.scalar_type(), " on ",
        first.device());
  }
  TORCH_CHECK_VALUE(IsGradientType(first.scalar_type()),
                    "GRADIENTFLOW_PROFILE: expected gradients of float32, "
                    "float16 or bfloat16, seen ",
                    first.scalar_type());
  return *DtypeOf(first.scalar_type());
}

}  // namespace

void Moment::Take(c10::Device device) {
  if (device.is_cpu()) {
    time_ = std::chrono::steady_clock::now();
    return;
  }
  // Events of the default kind of torch's have no time.
  if (!event_) event_.emplace(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  event_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

void Moment::Wait() const {
  if (event_) event_->synchronize();
}

double Moment::Since(const Moment& before) const {
  if (event_) return before.event_->elapsedTime(*event_) / 1000;
  return std::chrono::duration<double>(time_ - before.time_).count();
}

// Runs when a gradient has been computed, and before DDP takes it.
class HookProfile::ReadyHook final : public torch::autograd::FunctionPreHook {
 public:
  ReadyHook(HookProfile& owner, size_t i) : owner_(owner), i_(i) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    owner_.Ready(i_);
    return gradients;
  }

 private:
  HookProfile& owner_;
  const size_t i_;
};

std::shared_ptr<HookProfile> HookProfile::Open(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    const ProfiledModel& model) {
  const Options options = Options::FromEnv();
  if (options.Get("profile").empty() || model.parameters.empty()) {
    return nullptr;
  }
  std::vector<gf_tensor> tensors(model.parameters.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    gf_tensor_init(&tensors[i]);
    tensors[i].name = model.names[i].c_str();
    tensors[i].elements = static_cast<size_t>(model.parameters[i].numel());
  }
  gf_profile_config config;
  gf_profile_config_init(&config);
  config.tensors = tensors.data();
  config.tensor_count = tensors.size();
  config.dtype = CommonType(model);
  config.rank = group->getRank();
  config.size = group->getSize();
  config.device = model.device.c_str();
  gf_profile* profile = nullptr;
  const gf_status opened = gf_profile_open(options.get(), &config, &profile);
  TORCH_CHECK_VALUE(opened == GF_OK, "GRADIENTFLOW_PROFILE: ", gf_last_error());
  if (profile == nullptr) return nullptr;  // All tensors are empty.
  std::shared_ptr<HookProfile> made(
      new HookProfile(profile, group, model.parameters));
  made->AddHooks(model.parameters);
  return made;
}

HookProfile::HookProfile(gf_profile* profile,
                         c10::intrusive_ptr<c10d::ProcessGroup> group,
                         const std::vector<at::Tensor>& parameters)
    : profile_(profile),
      group_(std::move(group)),
      device_(parameters.front().device()),
      forks_(Forks()) {
  for (Pass& pass : passes_) {
    pass.ready.resize(parameters.size());
    pass.seen.resize(parameters.size());
    pass.runs_before.resize(parameters.size());
  }
}

HookProfile::~HookProfile() { Close(); }

void HookProfile::AddHooks(const std::vector<at::Tensor>& parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    auto node = torch::autograd::impl::grad_accumulator(parameters[i]);
    auto hook = std::make_unique<ReadyHook>(*this, i);
    const auto* added = hook.get();
    node->add_pre_hook(std::move(hook));
    hooked_.push_back({std::move(node), added});
  }
}

bool HookProfile::on() const {
  return profile_ != nullptr && Forks() == forks_;
}

void HookProfile::Begin() {
  std::fill(now().seen.begin(), now().seen.end(), 0);
  now().first.reset();
  now().run_count = 0;
  now().reporting = 0;
}

void HookProfile::Ready(size_t i) {
  // A second time: the pass before exchanged nothing, as in no_sync(), and has
  // become a part of forward.
  if (now().seen[i] != 0) Begin();
  Pass& pass = now();
  pass.ready[i].Take(device_);
  pass.seen[i] = 1;
  pass.runs_before[i] = pass.run_count;
  if (!pass.first) pass.first = i;
  pass.last = i;
}

void HookProfile::BeforeRun(const c10d::GradBucket& bucket) {
  if (!on()) return;
  Pass& pass = now();
  if (pass.runs.size() == pass.run_count) pass.runs.emplace_back();
  pass.runs[pass.run_count].begin.Take(device_);
  if (bucket.getIndex() == 0) BeginStep();
}

void HookProfile::AfterRun(const c10d::GradBucket& bucket) {
  if (!on()) return;
  Pass& pass = now();
  pass.runs[pass.run_count++].end.Take(device_);
  if (bucket.isLast()) count_ = pass.run_count;
}

void HookProfile::AfterFinish() {
  if (!on() || ++finished_ != count_) return;
  now().end.Take(device_);
  now().update_count = 0;
  ended_ = true;
  now_ = 1 - now_;
  Begin();
}

void HookProfile::OptimizerBegins() {
  if (!on() || !ended_) return;
  Pass& pass = before();
  if (pass.updates.size() == pass.update_count) pass.updates.emplace_back();
  pass.updates[pass.update_count].begin.Take(device_);
  updating_ = steps_;
}

void HookProfile::OptimizerEnds() {
  if (!on()) return;
  // An update that runs backward itself, in a closure, does not count.
  if (updating_ != steps_) return;
  updating_.reset();
  before().updates[before().update_count++].end.Take(device_);
}

// The step before has come to its end, or never will: a rank without further
// inputs shadows the steps of the others, and takes no results. Steps count on
// all ranks alike, since Tell() depends on them.
void HookProfile::BeginStep() {
  const auto began = std::chrono::steady_clock::now();
  Hear();
  if (steps_++ > 0) Report();
  has_begin_ = ended_;
  ended_ = false;
  finished_ = count_ = 0;
  Tell();
  if (!device_.is_cpu()) return;  // A device goes on meanwhile.
  now().reporting =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began)
          .count();
}

void HookProfile::Report() {
  if (!ended_) {
    updated_ = 0;
    Check(gf_profile_skip(profile_), "a step's profile");
    return;
  }
  Pass& pass = before();
  const double updated = updated_;
  updated_ = 0;
  for (size_t i = 0; i < pass.update_count; ++i) {
    pass.updates[i].end.Wait();
    updated_ += pass.updates[i].seconds();
  }
  if (!has_begin_ || !pass.first) {
    Check(gf_profile_skip(profile_), "a step's profile");
    return;
  }
  pass.end.Wait();
  std::vector<double> run(pass.run_count + 1);  // Of the first runs together.
  for (size_t k = 0; k < pass.run_count; ++k) {
    run[k + 1] = run[k] + pass.runs[k].seconds();
  }
  const Moment& first = pass.ready[*pass.first];
  // On a device runs may overlap with what comes after.
  const auto ready_at = [&](size_t i) {
    return std::max(pass.ready[i].Since(first) - run[pass.runs_before[i]], 0.0);
  };
  std::vector<double> ready(pass.ready.size());
  for (size_t i = 0; i < ready.size(); ++i) {
    // What took no part in the step was there from its beginning.
    ready[i] = pass.seen[i] != 0 ? ready_at(i) : 0;
  }
  gf_profile_times times;
  gf_profile_times_init(&times);
  times.backward = ready_at(pass.last);
  times.wait =
      std::max(pass.end.Since(first) - times.backward - pass.reporting, 0.0);
  times.forward = std::max(first.Since(now().end) - updated, 0.0);
  times.optimizer = updated_;
  times.ready = ready.data();
  if (gf_profile_add(profile_, &times) != GF_OK) {
    TORCH_WARN_ONCE("GRADIENTFLOW_PROFILE: ", gf_last_error());
  }
}

void HookProfile::Tell() {
  size_t count = 0;
  Check(gf_profile_tell(profile_, &values_, &count), "what ranks tell");
  if (count == 0) return;
  sums_ = at::from_blob(values_, {static_cast<int64_t>(count)}, at::kDouble)
              .to(device_, at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  pending_ = group_.StartSum(sums_);
}

// Takes what was told one step ago.
void HookProfile::Hear() {
  if (pending_ == nullptr) return;
  const HookGroup::Future pending = std::exchange(pending_, nullptr);
  pending->wait();
  const at::Tensor sums = std::exchange(sums_, {});
  if (pending->hasError()) return;  // The job has failed, and DDP says so.
  at::from_blob(values_, {sums.numel()}, at::kDouble).copy_(sums);
  Check(gf_profile_told(profile_), "what ranks tell");
}

void HookProfile::Close() {
  if (profile_ == nullptr) return;
  for (const Hooked& hooked : hooked_) {
    std::erase_if(hooked.node->pre_hooks(),
                  [&](const auto& hook) { return hook.get() == hooked.ready; });
  }
  hooked_.clear();
  if (!on()) {  // The file belongs to the process that trains.
    profile_ = nullptr;
    return;
  }
  try {
    Hear();
    if (ended_) Report();
  } catch (const std::exception&) {
    // The device or the job has failed. The file has what was reported before.
  }
  gf_profile_close(std::exchange(profile_, nullptr));
}

}  // namespace gft
