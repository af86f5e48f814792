#include "gradientflow/session/profiled_steps.h"

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
#include "gradientflow/planner/quartiles.h"
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

// What does not depend on the steps.
planner::Profile AboutOf(const Options& options, const PoolLayout& layout,
                         const std::vector<std::string>& names) {
  planner::Profile about;
  about.measured.by = planner::MeasuredBy(
      StrCat("GradientFlow ", kVersionMajor, ".", kVersionMinor));
  about.device = options.device;
  about.dtype = Name(options.pool_dtype);
  about.batch_samples = options.profile_batch;
  about.ranks = static_cast<std::size_t>(options.size);
  for (const std::size_t i : layout.order()) {
    about.tensors.push_back({names[i], layout.tensor_elements(i), {}});
  }
  return about;
}

}  // namespace

Result<std::unique_ptr<ProfiledSteps>> ProfiledSteps::Open(
    const Options& options, const PoolLayout& layout,
    const std::vector<std::string>& names, const Clock* clock) {
  const std::string& name = options.profile;
  if (name.empty() || layout.elements() == 0) {
    return std::unique_ptr<ProfiledSteps>();
  }
  const bool each = name.find("%r") != std::string::npos;
  std::string path;
  if (each || options.rank == 0) {
    path = TimelinePath(name, options.rank);
    const std::string test = path + ".new";
    const Status writable = planner::WriteTextFile(test, "");
    if (!writable.ok()) {
      return Status(writable.code(), StrCat("profile: ", writable.message()));
    }
    std::remove(test.c_str());
  }
  return std::unique_ptr<ProfiledSteps>(new ProfiledSteps(
      options, AboutOf(options, layout, names), clock, std::move(path)));
}

ProfiledSteps::ProfiledSteps(const Options& options, planner::Profile about,
                             const Clock* clock, std::string path)
    : rank_(options.rank),
      size_(options.size),
      about_(std::move(about)),
      clock_(clock),
      path_(std::move(path)),
      ready_(kKept * about_.tensors.size()),
      ending_(about_.tensors.size()),
      times_(kKept),
      written_at_(clock->Now()),
      told_(kTold * static_cast<std::size_t>(size_)) {}

// Nobody is left who could be told of a failure.
ProfiledSteps::~ProfiledSteps() {
  if (writes() && changed_) static_cast<void>(Write());
}

std::size_t ProfiledSteps::kept() const {
  return static_cast<std::size_t>(std::min<std::uint64_t>(recorded_, kKept));
}

void ProfiledSteps::Count() {
  ++steps_;
  to_tell_ =
      size_ > 1 && (IsOneOf(kTellAfter, steps_) || steps_ % kTellEvery == 0);
}

void ProfiledSteps::Add(const StepSeconds& seconds) {
  has_last_ = steps_ >= kWarmUp;
  if (has_last_) {
    changed_ = true;
    const std::size_t row = recorded_++ % kKept;
    std::copy(
        ending_.begin(), ending_.end(),
        ready_.begin() + static_cast<std::ptrdiff_t>(row * ending_.size()));
    times_[row] = {seconds, 0};
  }
  Count();
}

void ProfiledSteps::AddUnknown() {
  has_last_ = false;
  Count();
}

void ProfiledSteps::OptimizerRan(float seconds) {
  if (has_last_) times_[(recorded_ - 1) % kKept].optimizer += seconds;
}

std::span<double> ProfiledSteps::Tell() {
  if (!std::exchange(to_tell_, false)) return {};
  // By now the optimiser of the last step has run, too.
  const planner::Quartiles own = OwnWork();
  std::fill(told_.begin(), told_.end(), 0.0);
  double* const mine = &told_[kTold * static_cast<std::size_t>(rank_)];
  mine[0] = own.median;
  mine[1] = SpreadOf(own);
  return told_;
}

void ProfiledSteps::Told() {
  ranks_ = told_;
  changed_ = recorded_ > 0;
}

void ProfiledSteps::Restart() {
  steps_ = 0;
  has_last_ = to_tell_ = false;
}

planner::Quartiles ProfiledSteps::Over(float (*of)(const Times&)) const {
  std::vector<double> values;
  for (std::size_t i = 0; i < kept(); ++i) values.push_back(of(times_[i]));
  return planner::QuartilesOf(values);
}

planner::Quartiles ProfiledSteps::OwnWork() const {
  return Over([](const Times& times) { return times.own(); });
}

// How far the ranks are apart in a step: what they differ by all the time, and
// what each of them varies by. Nothing until they have told.
std::optional<double> ProfiledSteps::RankSpread() const {
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

planner::Profile ProfiledSteps::Summary() const {
  planner::Profile profile = about_;
  profile.measured.at = planner::TimeNow();
  profile.steps = kept();
  profile.forward_seconds =
      Over([](const Times& t) { return t.seconds.forward; });
  profile.backward_seconds =
      Over([](const Times& t) { return t.seconds.backward; });
  profile.wait_seconds = Over([](const Times& t) { return t.seconds.wait; });
  profile.optimizer_seconds = Over([](const Times& t) { return t.optimizer; });
  profile.step_seconds = Over([](const Times& t) { return t.step(); });
  const planner::Quartiles own = OwnWork();
  if (own.median > 0) profile.step_spread_fraction = SpreadOf(own) / own.median;
  profile.rank_spread_fraction = RankSpread();
  std::vector<double> ready(kept());
  for (std::size_t place = 0; place < ending_.size(); ++place) {
    for (std::size_t k = 0; k < ready.size(); ++k) {
      ready[k] = ready_[k * ending_.size() + place];
    }
    profile.tensors[place].ready_seconds = planner::QuartilesOf(ready);
  }
  return profile;
}

Status ProfiledSteps::Write() {
  changed_ = false;
  const Status written =
      planner::WriteTextFile(path_, planner::ProfileText(Summary()));
  if (written.ok()) return written;
  return {written.code(), StrCat("profile: ", written.message())};
}

Status ProfiledSteps::WriteIfDue() {
  if (!writes() || !changed_) return Status();
  if (!IsOneOf(kWriteAfter, recorded_) &&
      clock_->Now() - written_at_ < kWriteEvery) {
    return Status();
  }
  const Status written = Write();
  written_at_ = clock_->Now();
  return written;
}

}  // namespace gradientflow
