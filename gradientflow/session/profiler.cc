#include "gradientflow/session/profiler.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <utility>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/config/version.h"
#include "gradientflow/observe/timeline.h"
#include "gradientflow/planner/provenance.h"
#include "gradientflow/planner/quantile.h"
#include "gradientflow/planner/text_file.h"

namespace gradientflow {
namespace {

// Steps at the beginning that are left out: pages, links and caches are cold.
constexpr std::uint64_t kWarmUp = 2;
// Numbers of recorded steps after which the file is written at once.
constexpr std::uint64_t kWriteAfter[] = {4, 16, 64};
constexpr Clock::Time kWriteEvery = std::chrono::seconds(60);
// Numbers of finished steps after which ranks tell each other their times; and
// later, again and again.
constexpr std::uint64_t kTellAfter[] = {6, 20, 70, 260};
constexpr std::uint64_t kTellEvery = 1024;
// What a rank tells: the median of its own work in a step, and its spread.
constexpr std::size_t kTold = 2;

bool IsOneOf(std::span<const std::uint64_t> numbers, std::uint64_t n) {
  return std::find(numbers.begin(), numbers.end(), n) != numbers.end();
}

}  // namespace

Result<std::unique_ptr<Profiler>> Profiler::Open(const ProfilerArgs& args) {
  const std::string& name = args.options->profile;
  if (name.empty() || args.layout->elements() == 0) {
    return std::unique_ptr<Profiler>();
  }
  const bool each = name.find("%r") != std::string::npos;
  std::string path;
  if (each || args.options->rank == 0) {
    path = TimelinePath(name, args.options->rank);
    const std::string test = path + ".new";
    const Status writable = planner::WriteTextFile(test, "");
    if (!writable.ok()) {
      return Status(writable.code(), StrCat("profile: ", writable.message()));
    }
    std::remove(test.c_str());
  }
  return std::unique_ptr<Profiler>(new Profiler(args, std::move(path)));
}

Profiler::Profiler(const ProfilerArgs& args, std::string path)
    : args_(args),
      rank_(args.options->rank),
      size_(args.options->size),
      tensors_(args.layout->tensors()),
      path_(std::move(path)),
      ready_(kKept * tensors_),
      ending_(tensors_),
      times_(kKept),
      written_at_(args.clock->Now()),
      told_(kTold * static_cast<std::size_t>(size_)) {}

// Nobody is left who could be told of a failure.
Profiler::~Profiler() {
  if (writes() && changed_) static_cast<void>(Write());
}

std::size_t Profiler::kept() const {
  return static_cast<std::size_t>(std::min<std::uint64_t>(recorded_, kKept));
}

void Profiler::StepEnded(const StepMoments& moments) {
  if (follows_ && steps_ >= kWarmUp) {
    changed_ = true;
    const std::size_t row = recorded_++ % kKept;
    std::copy(ending_.begin(), ending_.end(),
              ready_.begin() + static_cast<std::ptrdiff_t>(row * tensors_));
    Times& times = times_[row];
    const auto seconds = [](Clock::Time from, Clock::Time to) {
      return static_cast<float>(Seconds(std::max(to - from, Clock::Time{})));
    };
    times.forward = seconds(end_, moments.first_ready);
    times.backward = seconds(moments.first_ready, moments.over);
    times.wait = seconds(moments.over, moments.end);
    times.optimizer = 0;
  }
  follows_ = true;
  end_ = moments.end;
  ++steps_;
  to_send_ =
      size_ > 1 && (IsOneOf(kTellAfter, steps_) || steps_ % kTellEvery == 0);
}

void Profiler::OptimizerRan(Clock::Time begin, Clock::Time end) {
  // What comes between is the next step's forward.
  const Clock::Time took = end - begin;
  end_ += took;
  if (recorded_ > 0 && follows_ && steps_ > kWarmUp) {
    times_[(recorded_ - 1) % kKept].optimizer +=
        static_cast<float>(Seconds(took));
  }
}

void Profiler::Send(std::uint64_t step) {
  if (!std::exchange(to_send_, false)) return;
  in_flight_ = true;
  // By now the optimiser of the last step has run, too.
  const planner::Quartiles own = OwnWork();
  std::fill(told_.begin(), told_.end(), 0.0);
  double* const mine = &told_[kTold * static_cast<std::size_t>(rank_)];
  mine[0] = own.median;
  mine[1] = SpreadOf(own);
  CollectiveCall call;
  call.output = told_.data();
  call.count = told_.size();
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
  if (!status.ok()) return;  // The job has failed.
  profiler.ranks_ = profiler.told_;
  profiler.changed_ = profiler.recorded_ > 0;
}

void Profiler::Restart() {
  steps_ = 0;
  follows_ = to_send_ = false;
}

planner::Quartiles Profiler::Over(float (*of)(const Times&)) const {
  std::vector<double> values;
  for (std::size_t i = 0; i < kept(); ++i) values.push_back(of(times_[i]));
  return planner::QuartilesOf(values);
}

planner::Quartiles Profiler::OwnWork() const {
  return Over([](const Times& times) { return times.own(); });
}

// How far the ranks are apart in a step: what they differ by all the time, and
// what each of them varies by. Nothing until they have told.
std::optional<double> Profiler::RankSpread() const {
  double sum = 0;
  double squares = 0;
  double varies = 0;
  for (std::size_t at = 0; at < ranks_.size(); at += kTold) {
    sum += ranks_[at];
    squares += ranks_[at] * ranks_[at];
    varies += ranks_[at + 1] * ranks_[at + 1];
  }
  if (!(sum > 0)) return std::nullopt;
  const double n = size_;
  const double mean = sum / n;
  const double between = std::max(squares - n * mean * mean, 0.0) / (n - 1);
  return std::sqrt(between + varies / n) / mean;
}

planner::Profile Profiler::Summary() const {
  planner::Profile profile;
  profile.measured.by = planner::MeasuredBy(
      StrCat("GradientFlow ", kVersionMajor, ".", kVersionMinor));
  profile.measured.at = planner::TimeNow();
  profile.device = args_.options->device;
  profile.dtype = Name(args_.options->pool_dtype);
  profile.batch_samples = args_.options->profile_batch;
  profile.ranks = static_cast<std::size_t>(size_);
  profile.steps = kept();
  profile.forward_seconds = Over([](const Times& t) { return t.forward; });
  profile.backward_seconds = Over([](const Times& t) { return t.backward; });
  profile.wait_seconds = Over([](const Times& t) { return t.wait; });
  profile.optimizer_seconds = Over([](const Times& t) { return t.optimizer; });
  profile.step_seconds = Over([](const Times& t) { return t.step(); });
  const planner::Quartiles own = OwnWork();
  if (own.median > 0) profile.step_spread_fraction = SpreadOf(own) / own.median;
  profile.rank_spread_fraction = RankSpread();
  std::size_t place = 0;
  for (const std::size_t i : args_.layout->order()) {
    std::vector<double> ready;
    for (std::size_t k = 0; k < kept(); ++k) {
      ready.push_back(ready_[k * tensors_ + place]);
    }
    ++place;
    profile.tensors.push_back({(*args_.names)[i],
                               args_.layout->tensor_elements(i),
                               planner::QuartilesOf(ready)});
  }
  return profile;
}

Status Profiler::Write() {
  changed_ = false;
  const Status written =
      planner::WriteTextFile(path_, planner::ProfileText(Summary()));
  if (written.ok()) return written;
  return {written.code(), StrCat("profile: ", written.message())};
}

Status Profiler::WriteIfDue() {
  if (!writes() || !changed_) return Status();
  const Clock::Time begin = args_.clock->Now();
  if (!IsOneOf(kWriteAfter, recorded_) && begin - written_at_ < kWriteEvery) {
    return Status();
  }
  const Status written = Write();
  const Clock::Time end = args_.clock->Now();
  end_ += end - begin;
  written_at_ = end;
  return written;
}

}  // namespace gradientflow
