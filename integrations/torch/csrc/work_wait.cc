#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "library.h"
#include "testimony.h"
#include "work.h"

// How threads wait for an operation.
namespace gft {
namespace {

using Clock = std::chrono::steady_clock;

// How long calls may take to end after the job has ended.
constexpr std::chrono::seconds kAfterAbort(30);

double SecondsUntil(Clock::time_point deadline) {
  if (deadline == Clock::time_point::max()) return -1;
  const std::chrono::duration<double> left = deadline - Clock::now();
  return std::max(0.0, left.count());
}

}  // namespace

std::vector<uint64_t> Work::Tickets() const {
  const std::lock_guard lock(mutex_);
  return {tickets_.begin(), tickets_.end()};
}

bool Work::WaitUntil(Clock::time_point deadline) {
  group_->session().CheckProcess();  // In a fork nobody drives the session.
  // Calls may start other calls when they end.
  size_t awaited = 0;
  for (std::vector<uint64_t> tickets; awaited < (tickets = Tickets()).size();) {
    const Session::Use session(group_->session());
    for (; awaited < tickets.size(); ++awaited) {
      const gf_status status =
          gf_comm_wait(session, tickets[awaited], SecondsUntil(deadline));
      if (status == GF_DEADLINE_EXCEEDED) return false;
      Check(status, facts_.title);
    }
  }
  // Its callbacks may still run on another thread, or on this one and wait for
  // it.
  if (done_.load(std::memory_order_acquire) || IsMarkingHere()) return true;
  std::unique_lock lock(mutex_);
  const auto over = [this] { return completed_; };
  if (deadline != Clock::time_point::max()) {
    return cv_.wait_until(lock, deadline, over);
  }
  cv_.wait(lock, over);
  return true;
}

bool Work::wait(Milliseconds timeout) {
  if (!done_.load(std::memory_order_acquire)) {
    const Clock::time_point theirs = timeout > kNoTimeout
                                         ? Clock::now() + timeout
                                         : Clock::time_point::max();
    if (!WaitUntil(std::min(theirs, deadline_))) {
      // A receive may never end; everything else ends by its own deadline.
      if (theirs < deadline_ && IsReceive()) GiveUp();
      TORCH_CHECK_WITH(DistBackendError, deadline_ <= theirs,
                       "GradientFlow: ", TimedOut(timeout, Description()),
                       ", which is still under way");
      Expire();
    }
  }
  Rethrow();
  return true;
}

void Work::Rethrow() {
  std::exception_ptr error;
  bool mismatch = false;
  {
    const std::lock_guard lock(mutex_);
    error = error_;
    mismatch = mismatch_;
  }
  if (!error) return;
  if (mismatch) {
    const std::string all = group_->session().testimony().Of(group_->ranks());
    TORCH_CHECK_WITH(DistBackendError, all.empty(),
                     "GradientFlow: ", Description(),
                     ": the ranks call different operations:", all);
  }
  std::rethrow_exception(error);
}

void Work::Expire() {
  const std::string why = TimedOut(facts_.timeout, Description());
  group_->hooks().Failed();
  {
    const Session::Use session(group_->session());
    gf_comm_abort(session, why.c_str());
  }
  TORCH_CHECK_WITH(DistBackendError, WaitUntil(Clock::now() + kAfterAbort),
                   "GradientFlow: ", why);
}

void Work::abort() {
  if (done_.load(std::memory_order_acquire)) return;
  const Session::Use session(group_->session());
  gf_comm_abort(session, (Description() + " was aborted").c_str());
}

}  // namespace gft
