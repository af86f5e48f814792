#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <integrations/c/gradientflow_profile.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <vector>

#include "hook_group.h"

namespace gft {

// A moment of the host's clock, or, for another device, the one at which its
// current stream has done what it was given before.
class Moment {
 public:
  void Take(c10::Device device);
  // Waits until the device has come to it.
  void Wait() const;
  // The seconds from `before` to this one. REQUIRES: both were taken, on the
  // same device, which has come to both.
  double Since(const Moment& before) const;

 private:
  std::chrono::steady_clock::time_point time_;
  std::optional<c10::Event> event_;
};

// What a hook's profile is of. Names and tensors are in DDP's order.
struct ProfiledModel {
  std::vector<std::string> names;
  std::vector<at::Tensor> parameters;
  std::string device;  // In words.
};

// The profile (gradientflow/docs/planner.md) of a DDP that has one of our
// hooks: GRADIENTFLOW_PROFILE.
//
//   AccumulateGrad of parameter i ─ Ready(i) ──────────┐
//   Reducer ─ BeforeRun() ─ hook ─ AfterRun() ─────────┤  Pass: moments
//   Reducer ─ hook's result ─ AfterFinish() ───────────┤
//   optimiser ─ OptimizerBegins() ─ OptimizerEnds() ───┘
//   the next step's first BeforeRun() ─ Report() ─> gf_profile
//
// So a step is looked at in the middle of the next one: a device has come to
// its end by then, and need not be waited for while nothing else is queued.
//
// What the hook does to a bucket on the thread that drives backward is no part
// of what the model computes: it counts as waiting, and gradients after it as
// ready so much earlier. The same holds for Report().
//
// The thread that drives backward calls most of this, Python the rest, between
// backward passes. In a fork nothing is written.
class HookProfile {
 public:
  // Reads the settings of the environment. Returns null if they want no
  // profile. Throws c10::ValueError if the file cannot be written, or if the
  // gradients are not of one type and device that a profile can have.
  static std::shared_ptr<HookProfile> Open(
      const c10::intrusive_ptr<c10d::ProcessGroup>& group,
      const ProfiledModel& model);
  ~HookProfile();
  HookProfile(const HookProfile&) = delete;
  HookProfile& operator=(const HookProfile&) = delete;

  // Around the hook's Run() and after its Finish().
  void BeforeRun(const c10d::GradBucket& bucket);
  void AfterRun(const c10d::GradBucket& bucket);
  void AfterFinish();

  // An update of the model's parameters begins and ends.
  void OptimizerBegins();
  void OptimizerEnds();

  // Takes the last step, and writes the file. Nothing is profiled any more.
  void Close();

 private:
  class ReadyHook;
  struct Span {
    Moment begin;
    Moment end;
    double seconds() const { return end.Since(begin); }
  };
  // The moments of a backward pass and of what follows it. Kept from pass to
  // pass, so that events are made once.
  struct Pass {
    std::vector<Moment> ready;        // By parameter,
    std::vector<uint8_t> seen;        // if its gradient was computed,
    std::vector<size_t> runs_before;  // after so many runs of the hook.
    std::optional<size_t> first;      // The first of them,
    size_t last = 0;                  // and the last.
    std::vector<Span> runs;           // The first `run_count` count.
    size_t run_count = 0;
    double reporting = 0;  // Of the host, within the first run.
    Moment end;
    std::vector<Span> updates;  // The first `update_count` count.
    size_t update_count = 0;
  };

  HookProfile(gf_profile* profile, c10::intrusive_ptr<c10d::ProcessGroup> group,
              const std::vector<at::Tensor>& parameters);
  void AddHooks(const std::vector<at::Tensor>& parameters);
  bool on() const;  // Open, and not in a fork.
  Pass& now() { return passes_[now_]; }
  Pass& before() { return passes_[1 - now_]; }
  void Begin();
  void Ready(size_t i);
  void BeginStep();
  void Report();
  void Tell();
  void Hear();

  gf_profile* profile_;  // Null once closed.
  const HookGroup group_;
  const c10::Device device_;
  const uint32_t forks_;
  // Holds the node, since a parameter does not. Torch 2.13 and 2.15 differ in
  // the type of its pointer.
  struct Hooked {
    decltype(torch::autograd::impl::grad_accumulator(at::Tensor())) node;
    const torch::autograd::FunctionPreHook* ready;
  };
  std::vector<Hooked> hooked_;
  // The pass under way, and the last one that ended a step. While a step is
  // under way its `end` is that of the step before the last one.
  std::array<Pass, 2> passes_;
  size_t now_ = 0;
  uint64_t steps_ = 0;      // That have begun.
  size_t finished_ = 0;     // Buckets of the step,
  size_t count_ = 0;        // and how many it has, once the last has run.
  bool ended_ = false;      // The step that began last has ended.
  bool has_begin_ = false;  // And the one before it.
  double updated_ = 0;      // Seconds of the updates after the step before.
  std::optional<uint64_t> updating_;  // The number of steps when one began.
  // What ranks tell each other: the profile's numbers, and their sums, which
  // may be on their way.
  double* values_ = nullptr;
  at::Tensor sums_;
  HookGroup::Future pending_;
};

}  // namespace gft
