#include "gradientflow/session/engine.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <limits>
#include <utility>

#include "gradientflow/base/looks.h"
#include "gradientflow/base/str_cat.h"

// A step as the engine sees it:
//
//   Claim(), Publish()   hooks, on any thread: marks_[i] goes kFree -> kClaimed
//                        -> kWritten; the last of a section wakes the driver
//   Poll()               the driver: finds how far the pool is written from its
//                        beginning, and tells the aggregator
//   EndBackward()        FinishStep(): every tensor must be marked
//   StepDone()           everything is aggregated, and all hooks have left
//   End()                the times of the step
//
// On a device a tensor counts as written once its work has been submitted. So
// the driver advances by sections, each of which has an event. The device waits
// for these events, bucket by bucket (handover.h, DeviceSync::AwaitWritten()),
// and their times are read when the step is over (engine_times.h). There a step
// can also end with Submitted() and Leave(). Then the hooks are in the next
// step while the aggregator is in the one before, until TakeResult().
namespace gradientflow {
namespace {

// A section of the pool ends with the tensor that takes it to this size.
constexpr std::size_t kSectionElements = std::size_t{128} << 10;
constexpr std::size_t kNamesInText = 4;
// A step that was left is looked at after this time even if nobody needs its
// result.
constexpr Clock::Time kUnaskedFor = std::chrono::seconds(1);

// How far the hook of a tensor is.
constexpr std::uint8_t kFree = 0;
constexpr std::uint8_t kClaimed = 1;
constexpr std::uint8_t kWritten = 2;

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

// Returns the section of each tensor, by tensor. A section consists of
// neighbours in the pool.
std::vector<std::uint32_t> SectionTensors(const PoolLayout& layout) {
  std::vector<std::uint32_t> section_of(layout.tensors());
  std::size_t filled = 0;
  std::uint32_t section = 0;
  for (std::size_t i : layout.order()) {
    if (filled >= kSectionElements) {
      filled = 0;
      ++section;
    }
    filled += layout.tensor_elements(i);
    section_of[i] = section;
  }
  return section_of;
}

}  // namespace

std::vector<std::size_t> Engine::SectionEndsOf(const PoolLayout& layout) {
  std::vector<std::size_t> ends;
  if (layout.tensors() == 0) return ends;
  const std::vector<std::uint32_t> section_of = SectionTensors(layout);
  ends.resize(section_of[layout.order().back()] + std::size_t{1});
  for (std::size_t i : layout.order()) {
    ends[section_of[i]] = layout.written_end(i);
  }
  return ends;
}

Engine::Engine(const EngineArgs& args, bool overlap)
    : args_(args),
      overlap_(overlap),
      tensors_(args.layout->tensors()),
      marks_(new std::atomic<std::uint8_t>[tensors_]()),
      ready_at_(new std::atomic<std::int64_t>[tensors_]()),
      section_of_(SectionTensors(*args.layout)),
      section_end_(SectionEndsOf(*args.layout)),
      section_size_(section_end_.size()),
      section_left_(new std::atomic<std::uint32_t>[section_size_.size()]()),
      section_handed_over_(
          new std::atomic<std::uint8_t>[section_size_.size()]()) {
  for (std::size_t i : args.layout->order()) ++section_size_[section_of_[i]];
}

bool Engine::Claim(std::size_t i) {
  std::uint8_t mark = kFree;
  if (i < tensors_ && marks_[i].compare_exchange_strong(mark, kClaimed)) {
    return true;
  }
  Misused(Status(
      StatusCode::kInvalidArgument,
      i >= tensors_ ? StrCat("tensor ", i,
                             " was marked ready, but there are only ", tensors_)
                    : StrCat("tensor ", (*args_.names)[i],
                             " was marked ready or absent twice")));
  return false;
}

// Every tensor marks itself and counts its section down. Only the last one of a
// section has more to do.
bool Engine::Publish(std::size_t i) {
  marks_[i].store(kWritten, std::memory_order_release);
  ready_at_[i].store(args_.clock->Now().count(), std::memory_order_relaxed);
  const std::uint32_t section = section_of_[i];
  if (section_left_[section].fetch_sub(1) != 1) return false;
  const Status written = args_.handover->Written(section);
  if (!written.ok()) {
    Misused(written);
    return true;
  }
  section_handed_over_[section].store(1);
  // FinishStep() sets this before it looks whether the hooks have left, so the
  // last hook cannot miss it.
  return overlap_ || backward_over_.load();
}

void Engine::Misused(const Status& why) {
  {
    MutexLock lock(misuse_mutex_);
    if (misuse_.ok()) misuse_ = why;
  }
  misused_.store(true, std::memory_order_release);
}

// Returns whether a hook has made a mistake, which ends the job.
bool Engine::FailIfMisused() {
  if (!misused_.load(std::memory_order_acquire)) return false;
  MutexLock lock(misuse_mutex_);
  // kFailedPrecondition would say that the step can still be saved.
  const bool curable = misuse_.code() == StatusCode::kFailedPrecondition;
  args_.fabric->Fail(
      Status(curable ? StatusCode::kInternal : misuse_.code(),
             StrCat("rank ", args_.fabric->rank(), " gave the job up in step ",
                    step_, ": ", misuse_.message())));
  return true;
}

std::vector<std::string> Engine::Missing(std::size_t limit,
                                         std::size_t* count) const {
  std::vector<std::string> names;
  *count = 0;
  for (std::size_t i : args_.layout->order()) {
    if (marks_[i].load(std::memory_order_acquire) != kFree) continue;
    if ((*count)++ < limit) names.push_back((*args_.names)[i]);
  }
  return names;
}

bool Engine::untouched() const {
  for (std::size_t i = 0; i < tensors_; ++i) {
    if (marks_[i].load(std::memory_order_acquire) != kFree) return false;
  }
  return open_;
}

void Engine::Open(std::uint64_t step) {
  for (std::size_t i = 0; i < tensors_; ++i) {
    marks_[i].store(kFree, std::memory_order_relaxed);
  }
  for (std::size_t k = 0; k < section_size_.size(); ++k) {
    section_handed_over_[k].store(0, std::memory_order_relaxed);
    section_left_[k].store(section_size_[k], std::memory_order_release);
  }
  args_.handover->NextStep();
  over_seen_ = false;
  sections_written_ = 0;
  step_ = step;
  prefix_ = written_end_ = 0;
  backward_over_ = false;
  busy_ = busy_since_ = Clock::Time{};
  wanted_ = given_up_ = false;
  open_ = true;
}

void Engine::Begin(std::uint64_t step, float loss_scale) {
  args_.aggregator->Begin(step, loss_scale);
  result_open_ = false;
  Open(step);
}

// From here on the exposed time counts, and the progress no longer depends on
// `overlap`.
Status Engine::EndBackward() {
  // StepDone() follows when all calls have ended.
  if (FailIfMisused()) return Status();
  std::size_t count = 0;
  const std::vector<std::string> missing = Missing(kNamesInText, &count);
  if (count > 0) {
    return Status(StatusCode::kFailedPrecondition,
                  StrCat("step ", step_, ": ", count, " of ", tensors_,
                         " tensors are neither ready nor absent: ",
                         Join(missing, count)));
  }
  over_at_ = over_looked_at_ = args_.clock->Now();
  backward_over_ = true;
  return Status();
}

bool Engine::StepDone() const {
  return (!result_open_ && args_.aggregator->Done() && HooksHaveLeft()) ||
         Failed();
}

bool Engine::Submitted() const {
  return (!result_open_ && args_.aggregator->Submitted() && HooksHaveLeft()) ||
         Failed();
}

// After a failure, the step is over when neither a peer nor a link touches the
// pool any more.
bool Engine::Failed() const {
  return !args_.fabric->status().ok() && !args_.driver->InFlight();
}

// Returns whether all hooks of the step have done everything that the next step
// starts from. While FinishStep() waits for it, the last hook wakes the driving
// thread.
bool Engine::HooksHaveLeft() const {
  for (std::size_t k = 0; k < section_size_.size(); ++k) {
    if (section_handed_over_[k].load() == 0) return false;
  }
  return true;
}

EngineTimes Engine::End() {
  EngineTimes times = TimesOfHost();
  Measure(&times);
  open_ = false;
  return times;
}

void Engine::Leave(std::uint64_t step) {
  left_times_ = TimesOfHost();
  result_open_ = true;
  left_at_ = args_.clock->Now();
  Open(step);
}

EngineTimes Engine::LeftTimes() const {
  EngineTimes times = left_times_;
  Measure(&times);
  return times;
}

StepOnDevice Engine::OnDevice() const {
  return {
      args_.handover->sync(),
      result_open_ ? DeviceSync::Of::kStepBefore : DeviceSync::Of::kThisStep,
      section_end_};
}

// Replaces the host's times by the device's. If the device has none, it has
// failed or done nothing; the step's result says that.
void Engine::Measure(EngineTimes* times) const {
  if (args_.handover->sync() == nullptr || section_end_.empty()) return;
  const Event* end = args_.aggregator->end();
  if (args_.wire != nullptr && end != nullptr) {
    const auto measured = TimesOnDevice(OnDevice(), *args_.wire, *end);
    if (!measured.ok()) return;
    const EngineTimes host = *times;
    *times = measured.value();
    times->end = host.end;
  } else {
    const Result<double> backward = BackwardOnDevice(OnDevice());
    if (!backward.ok()) return;
    times->backward_seconds = backward.value();
  }
  // The host submits a step ahead of the device, but waits for its end, which
  // is therefore the moment that the two clocks have in common.
  times->over = times->end - FromSeconds(times->exposed_seconds);
  times->first = times->over - FromSeconds(times->backward_seconds);
}

// On a device, backward goes on after FinishStep() is called. If the host moves
// the bytes, it looks for the end of backward here.
void Engine::LookForBackwardEnd() {
  const DeviceSync* const sync = args_.handover->sync();
  if (sync == nullptr || args_.wire != nullptr || over_seen_) return;
  const Clock::Time now = args_.clock->Now();
  if (now - over_looked_at_ < kLookInterval) return;
  const Result<bool> reached = sync->Reached();
  over_seen_ = !reached.ok() || reached.value();
  over_at_ = over_looked_at_ = now;
}

// The hidden time is the busy time that is not exposed.
EngineTimes Engine::TimesOfHost() {
  MeasureBusy();
  const Clock::Time now = args_.clock->Now();
  if (!backward_over_) over_at_ = now;
  EngineTimes times;
  times.over = over_at_;
  times.end = now;
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
    times.first = Clock::Time(first);
    args_.recorder->Record(
        {"backward", "", step_, 0, 0, Clock::Time(first), Clock::Time(last)});
  }
  args_.recorder->Record({"wait", "", step_, 0, 0, over_at_, now});
  return times;
}

std::vector<float> Engine::ReadySeconds() const {
  std::vector<float> seconds(tensors_);
  ReadySeconds(seconds);
  return seconds;
}

void Engine::ReadySeconds(std::span<float> seconds) const {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < tensors_; ++i) {
    first = std::min(first, ready_at_[i].load(std::memory_order_relaxed));
  }
  const DeviceSync* const sync = args_.handover->sync();
  std::size_t place = 0;
  for (std::size_t i : args_.layout->order()) {
    if (sync != nullptr) {
      const Result<double> ready =
          sync->ReadySeconds(OnDevice().step, section_of_[i]);
      seconds[place++] = ready.ok() ? static_cast<float>(ready.value()) : 0.0F;
      continue;
    }
    seconds[place++] = static_cast<float>(Seconds(
        Clock::Time(ready_at_[i].load(std::memory_order_relaxed) - first)));
  }
}

// How far communication may read the pool from its beginning, in elements. A
// step that is given up has no order to keep: nobody uses its results.
std::size_t Engine::ReadableEnd() {
  if (given_up_) return args_.layout->elements();
  if (!args_.handover->reads_tensors()) {
    while (sections_written_ < section_size_.size() &&
           section_handed_over_[sections_written_].load(
               std::memory_order_acquire) != 0) {
      ++sections_written_;
    }
    return sections_written_ == 0 ? 0 : section_end_[sections_written_ - 1];
  }
  const std::vector<std::size_t>& order = args_.layout->order();
  while (prefix_ < order.size() &&
         marks_[order[prefix_]].load(std::memory_order_acquire) == kWritten) {
    ++prefix_;
  }
  if (prefix_ == 0) return 0;
  return args_.layout->written_end(order[prefix_ - 1]);
}

bool Engine::Poll() {
  FailIfMisused();
  if (!open_) return false;
  bool moved = result_open_ && TakeResult();
  if (!result_open_) {
    const std::size_t end = overlap_ || backward_over_ ? ReadableEnd() : 0;
    // A hook that went wrong before it set one of the marks is noticed here.
    if (end > written_end_ && !FailIfMisused()) {
      if (written_end_ == 0) args_.before_buckets();
      written_end_ = end;
      args_.aggregator->Advance(end);
    }
    if (MayLook()) moved |= args_.aggregator->Work();
  }
  // A failure of the aggregator itself, not of a call, must end the job on all
  // ranks, too.
  const Status& broken = args_.aggregator->result().status;
  if (!broken.ok()) args_.fabric->Fail(broken);
  MeasureBusy();
  if (backward_over_) LookForBackwardEnd();
  return moved;
}

void Engine::SendTheRest() {
  given_up_ = backward_over_ = true;
  LookForResult();
}

// Returns whether the aggregator may work now. If nothing is left but to ask a
// device whether the step has ended, it may do so only once the answer is
// wanted, which is when the next step's first bucket depends on it.
bool Engine::MayLook() const {
  const Aggregator& aggregator = *args_.aggregator;
  if (!aggregator.Submitted() || aggregator.Done() || wanted_) return true;
  const bool begun =
      !section_end_.empty() && section_handed_over_[0].load() != 0;
  return result_open_ && (begun || backward_over_);
}

bool Engine::TakeResult() {
  const bool moved = MayLook() && args_.aggregator->Work();
  if (!args_.aggregator->Done() || !args_.take_result()) return moved;
  result_open_ = wanted_ = false;
  return true;
}

void Engine::Tick() {
  if (open_ && (result_open_ || !untouched())) args_.while_in_step();
  if (result_open_ && args_.clock->Now() - left_at_ >= kUnaskedFor) {
    LookForResult();
  }
}

// Adds up the time during which gradients were in flight.
void Engine::MeasureBusy() {
  const bool busy = args_.collective->Busy(args_.group, Channel::kGradients);
  if (busy == (busy_since_ != Clock::Time{})) return;
  const Clock::Time now = args_.clock->Now();
  if (!busy) busy_ += now - busy_since_;
  busy_since_ = busy ? now : Clock::Time{};
}

bool Engine::Pending() const {
  return open_ && ((args_.aggregator->HasWork() && MayLook()) ||
                   (backward_over_ && !args_.aggregator->Done()));
}

std::string Engine::Doing() const {
  if (!open_ || tensors_ == 0 || backward_over_) return "";
  std::size_t count = 0;
  const std::vector<std::string> missing = Missing(kNamesInText, &count);
  return StrCat("in backward of step ", step_, ", ", count, " of ", tensors_,
                " tensors awaited: ", Join(missing, count));
}

}  // namespace gradientflow
