#include "gradientflow/buckets/tuner.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "gradientflow/buckets/tuning.h"

namespace gradientflow {
namespace {

// Numbers of finished steps after which theta is chosen anew.
constexpr std::uint64_t kTuneAfter[] = {2, 5, 17};

}  // namespace

bool Tuner::Wants() const {
  return std::find(std::begin(kTuneAfter), std::end(kTuneAfter), steps_ + 1) !=
         std::end(kTuneAfter);
}

void Tuner::StepDone(std::vector<float> ready_seconds) {
  to_send_ = Wants();
  if (to_send_) ready_seconds_ = std::move(ready_seconds);
  ++steps_;
}

void Tuner::Send(std::uint64_t step) {
  if (!std::exchange(to_send_, false)) return;
  in_flight_ = true;
  CollectiveCall call;
  call.output = ready_seconds_.data();
  call.count = ready_seconds_.size();
  call.op = ReduceOp::kMax;
  call.channel = Channel::kGradients;
  call.group = args_.group;
  call.step = step;
  args_.collective->Start(call, {&Tuner::OnDone, this, 0});
}

void Tuner::OnDone(void* self, std::uint64_t, std::uint32_t,
                   const Status& status) {
  auto& tuner = *static_cast<Tuner*>(self);
  tuner.in_flight_ = false;
  tuner.arrived_ = status.ok();  // Else the job has failed.
}

std::optional<std::size_t> Tuner::Take() {
  if (!std::exchange(arrived_, false)) return std::nullopt;
  return TuneBucketBytes(*args_.layout, ready_seconds_,
                         args_.wire_element_bytes, args_.share, args_.cost);
}

void Tuner::Restart() {
  steps_ = 0;
  to_send_ = arrived_ = false;
}

}  // namespace gradientflow
