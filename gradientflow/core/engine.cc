#include "gradientflow/core/engine.h"

#include <algorithm>
#include <limits>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

constexpr std::size_t kGroupElements = std::size_t{128} << 10;
constexpr std::size_t kNamesInText = 4;

std::string Join(const std::vector<std::string>& names, std::size_t count) {
  std::string text;
  for (const std::string& name : names) {
    if (!text.empty()) text += ", ";
    text += name;
  }
  if (count > names.size()) {
    text += StrCat(" and ", count - names.size(), " more");
  }
  return text;
}

}  // namespace

Engine::Engine(const EngineParts& parts, const WatchdogOptions& watchdog,
               bool overlap)
    : parts_(parts),
      overlap_(overlap),
      watchdog_(watchdog, *parts.fabric, *parts.executor, *parts.clock),
      tensors_(parts.layout->tensors()),
      ready_(new std::atomic<std::uint8_t>[tensors_]()),
      ready_at_(new std::atomic<std::int64_t>[tensors_]()),
      group_of_(tensors_) {
  std::size_t filled = kGroupElements;
  for (std::size_t i : parts.layout->order()) {
    if (filled >= kGroupElements) {
      filled = 0;
      group_size_.push_back(0);
    }
    filled += parts.layout->tensor_elements(i);
    group_of_[i] = static_cast<std::uint32_t>(group_size_.size() - 1);
    ++group_size_.back();
  }
  group_left_.reset(new std::atomic<std::uint32_t>[group_size_.size()]());
}

bool Engine::Ready(std::size_t i) {
  if (i >= tensors_ || ready_[i].exchange(1, std::memory_order_acq_rel) != 0) {
    std::uint64_t none = 0;
    misused_.compare_exchange_strong(none, i + 1);
    return false;
  }
  ready_at_[i].store(parts_.clock->Now().count(), std::memory_order_relaxed);
  const bool last =
      group_left_[group_of_[i]].fetch_sub(1, std::memory_order_acq_rel) == 1;
  return last && overlap_;
}

std::vector<std::string> Engine::Missing(std::size_t limit,
                                         std::size_t* count) const {
  std::vector<std::string> names;
  *count = 0;
  for (std::size_t i : parts_.layout->order()) {
    if (ready_[i].load(std::memory_order_acquire) != 0) continue;
    if ((*count)++ < limit) names.push_back((*parts_.names)[i]);
  }
  return names;
}

bool Engine::untouched() const {
  for (std::size_t i = 0; i < tensors_; ++i) {
    if (ready_[i].load(std::memory_order_acquire) != 0) return false;
  }
  return open_;
}

void Engine::Begin(std::uint64_t step, float loss_scale) {
  for (std::size_t i = 0; i < tensors_; ++i) {
    ready_[i].store(0, std::memory_order_relaxed);
  }
  for (std::size_t g = 0; g < group_size_.size(); ++g) {
    group_left_[g].store(group_size_[g], std::memory_order_release);
  }
  misused_.store(0);
  step_ = step;
  prefix_ = 0;
  backward_over_ = false;
  busy_ = busy_since_ = Clock::Time{};
  parts_.aggregator->Begin(step, loss_scale);
  open_ = true;
}

Status Engine::EndBackward() {
  if (const std::uint64_t misused = misused_.load(); misused != 0) {
    const std::size_t i = misused - 1;
    return Status(StatusCode::kInvalidArgument,
                  i >= tensors_
                      ? StrCat("step ", step_, ": tensor ", i,
                               " was marked ready, but "
                               "there are only ",
                               tensors_)
                      : StrCat("step ", step_, ": tensor ", (*parts_.names)[i],
                               " was marked ready or absent twice"));
  }
  std::size_t count = 0;
  const std::vector<std::string> missing = Missing(kNamesInText, &count);
  if (count > 0) {
    return Status(StatusCode::kFailedPrecondition,
                  StrCat("step ", step_, ": ", count, " of ", tensors_,
                         " tensors are neither ready nor absent: ",
                         Join(missing, count)));
  }
  over_at_ = parts_.clock->Now();
  backward_over_ = true;
  return Status();
}

bool Engine::StepDone() const {
  // After a failure: no peer and no link touches the pool any more.
  return parts_.aggregator->Done() ||
         (!parts_.fabric->status().ok() && parts_.executor->in_flight() == 0);
}

EngineTimes Engine::End() {
  MeasureBusy();
  const Clock::Time now = parts_.clock->Now();
  EngineTimes times;
  times.exposed_seconds = Seconds(now - over_at_);
  times.hidden_seconds = std::max(0.0, Seconds(busy_) - times.exposed_seconds);
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = 0;
  for (std::size_t i = 0; i < tensors_; ++i) {
    const std::int64_t at = ready_at_[i].load(std::memory_order_relaxed);
    first = std::min(first, at);
    last = std::max(last, at);
  }
  if (tensors_ > 0) {
    times.backward_seconds = Seconds(Clock::Time(last - first));
    parts_.recorder->Record(
        {"backward", "", step_, 0, 0, Clock::Time(first), Clock::Time(last)});
  }
  parts_.recorder->Record({"wait", "", step_, 0, 0, over_at_, now});
  open_ = false;
  return times;
}

std::vector<float> Engine::ReadySeconds() const {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < tensors_; ++i) {
    first = std::min(first, ready_at_[i].load(std::memory_order_relaxed));
  }
  std::vector<float> seconds;
  for (std::size_t i : parts_.layout->order()) {
    seconds.push_back(static_cast<float>(Seconds(
        Clock::Time(ready_at_[i].load(std::memory_order_relaxed) - first))));
  }
  return seconds;
}

void Engine::AdvancePrefix() {
  const std::vector<std::size_t>& order = parts_.layout->order();
  const std::size_t before = prefix_;
  while (prefix_ < order.size() &&
         ready_[order[prefix_]].load(std::memory_order_acquire) != 0) {
    ++prefix_;
  }
  if (prefix_ == before) return;
  const std::size_t last = order[prefix_ - 1];
  parts_.aggregator->Advance(parts_.layout->offset(last) +
                             parts_.layout->tensor_elements(last));
}

bool Engine::Poll() {
  if (open_ && (overlap_ || backward_over_)) AdvancePrefix();
  bool moved = open_ && parts_.aggregator->Work();
  moved |= parts_.executor->Poll();
  MeasureBusy();
  return moved;
}

// Adds up the time in which something was on its way.
void Engine::MeasureBusy() {
  const bool busy = parts_.executor->in_flight() > 0;
  if (busy == (busy_since_ != Clock::Time{})) return;
  const Clock::Time now = parts_.clock->Now();
  if (!busy) busy_ += now - busy_since_;
  busy_since_ = busy ? now : Clock::Time{};
}

bool Engine::Pending() const {
  if (!parts_.fabric->status().ok()) return false;
  return waits_ > 0 || parts_.executor->in_flight() > 0 ||
         (open_ && parts_.aggregator->HasWork()) ||
         (open_ && backward_over_ && !parts_.aggregator->Done());
}

void Engine::Block(std::chrono::nanoseconds timeout) {
  parts_.fabric->Wait(timeout);
}

std::string Engine::ProgressText() const {
  std::string text = parts_.executor->OldestCall();
  if (!text.empty()) text = "in " + text;
  if (open_ && tensors_ > 0 && !backward_over_) {
    std::size_t count = 0;
    const std::vector<std::string> missing = Missing(kNamesInText, &count);
    if (!text.empty()) text += "; ";
    text += StrCat("in backward of step ", step_, ", ", count, " of ", tensors_,
                   " tensors awaited: ", Join(missing, count));
  }
  return text.empty() ? "idle, in no collective" : text;
}

void Engine::Tick() {
  parts_.fabric->SetProgressText(ProgressText());
  watchdog_.Tick(Pending());
  if (parts_.on_tick) parts_.on_tick();
}

}  // namespace gradientflow
