#include "gradientflow/base/str_cat.h"
#include "gradientflow/session/steps.h"

// How a session ends, between two steps or in the middle of one.
namespace gradientflow {
namespace {

// How long a rank that closes in the middle of a step waits for the others to
// do the same.
constexpr double kOthersCloseSeconds = 5;

}  // namespace

// Calls in flight still use the pool and the aggregator, so they have to end
// first. If all ranks close in the middle of the same step, they end it
// together; what the others do shows in their notes.
Steps::~Steps() {
  AwaitResult();
  bool inside = false;
  progress_.Do([&] {
    closing_ = true;
    inside = engine_.open() && !engine_.untouched();
    notes_.Tell(finished_, inside);
  });
  const bool in_vain = inside && !AwaitOthers();
  progress_.Do([&] {
    if (!in_vain && !Busy()) return;
    if (!args_.core->fabric().status().ok()) return;
    args_.core->Fail(Status(
        StatusCode::kAborted,
        StrCat("rank ", rank_, " closed its session in the middle of step ",
               step_, ", and not all ranks did")));
  });
  // After a failure every buffer is given back soon, even by a device.
  progress_.Drive([&] { return !Busy(); });
  progress_.Do([this] {
    args_.core->driver().Remove(&engine_);
    notes_.Close();
  });
}

bool Steps::Busy() const {
  return args_.pool->collective().Busy(args_.group, Channel::kGradients) ||
         Telling();
}

// This rank closes in the middle of a step. Returns true once no other rank
// needs it for that step, or has to learn that it is not coming. Returns false
// if a rank may still close in the same step and count on this one: it has
// learned that this rank closes there, too, but not everything that it then
// waits for has been submitted.
bool Steps::AwaitOthers() {
  const Clock& clock = args_.core->clock();
  const Clock::Time begin = clock.Now();
  bool in_vain = false;
  progress_.Drive([&] {
    if (!args_.core->fabric().status().ok()) return true;
    if (engine_.given_up()) {
      const bool done = args_.aggregator->Done() && !Busy();
      return done || !args_.aggregator->result().status.ok();
    }
    const auto others = notes_.Ask(finished_);
    if (others == ClosingNotes::Others::kInside) engine_.SendTheRest();
    if (others != ClosingNotes::Others::kAwaited) {
      return others == ClosingNotes::Others::kGone;
    }
    if (Seconds(clock.Now() - begin) <= kOthersCloseSeconds) return false;
    in_vain = !args_.aggregator->Submitted();
    return true;
  });
  return !in_vain;
}

}  // namespace gradientflow
