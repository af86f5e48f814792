#include "gradientflow/session/profiler.h"

#include <algorithm>

namespace gradientflow {

Result<std::unique_ptr<Profiler>> Profiler::Open(const ProfilerArgs& args) {
  auto steps =
      ProfiledSteps::Open(*args.options, *args.layout, *args.names, args.clock);
  if (!steps.ok()) return steps.status();
  if (steps.value() == nullptr) return std::unique_ptr<Profiler>();
  return std::unique_ptr<Profiler>(
      new Profiler(args, std::move(steps).value()));
}

void Profiler::StepEnded(const StepMoments& moments) {
  const auto seconds = [](Clock::Time from, Clock::Time to) {
    return static_cast<float>(Seconds(std::max(to - from, Clock::Time{})));
  };
  if (follows_) {
    steps_->Add({.forward = seconds(end_, moments.first_ready),
                 .backward = seconds(moments.first_ready, moments.over),
                 .wait = seconds(moments.over, moments.end)});
  } else {
    steps_->AddUnknown();
  }
  follows_ = true;
  end_ = moments.end;
}

void Profiler::OptimizerRan(Clock::Time begin, Clock::Time end) {
  // What comes between is the next step's forward.
  const Clock::Time took = end - begin;
  end_ += took;
  steps_->OptimizerRan(static_cast<float>(Seconds(took)));
}

void Profiler::Send(std::uint64_t step) {
  const std::span<double> told = steps_->Tell();
  if (told.empty()) return;
  in_flight_ = true;
  CollectiveCall call;
  call.output = told.data();
  call.count = told.size();
  call.dtype = call.wire = DType::kFloat64;
  call.channel = Channel::kGradients;
  call.group = args_.group;
  call.step = step;
  args_.collective->Start(call, {&Profiler::OnDone, this, 0});
}

void Profiler::OnDone(void* self, std::uint64_t, std::uint32_t,
                      const Status& status) {
  auto& profiler = *static_cast<Profiler*>(self);
  profiler.in_flight_ = false;
  if (status.ok()) profiler.steps_->Told();  // Else the job has failed.
}

void Profiler::Restart() {
  follows_ = false;
  steps_->Restart();
}

Status Profiler::WriteIfDue() {
  const Clock::Time begin = args_.clock->Now();
  const Status written = steps_->WriteIfDue();
  end_ += args_.clock->Now() - begin;
  return written;
}

}  // namespace gradientflow
