#include "work.h"

#include <Python.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

#include "callbacks.h"
#include "library.h"
#include "testimony.h"

namespace gft {
namespace {

// The session's own watchdog gives a better error, but only if nothing else
// moves: it gets this much more time.
constexpr std::chrono::milliseconds kForTheWatchdog(5000);

// How long calls may take to end after the job has ended.
constexpr std::chrono::seconds kAfterAbort(30);

double SecondsUntil(std::chrono::steady_clock::time_point deadline) {
  using Clock = std::chrono::steady_clock;
  if (deadline == Clock::time_point::max()) return -1;
  const std::chrono::duration<double> left = deadline - Clock::now();
  return std::max(0.0, left.count());
}

std::atomic<uint64_t> works_made{0};

// "Float[2, 3], Float[7] and 2 more".
std::string ShapesOf(const std::vector<at::Tensor>& tensors) {
  constexpr size_t kNamed = 4;
  std::string text;
  for (size_t i = 0; i < std::min(tensors.size(), kNamed); ++i) {
    if (!tensors[i].defined()) continue;
    text += c10::str(text.empty() ? "" : ", ", tensors[i].scalar_type(),
                     tensors[i].sizes());
  }
  if (tensors.size() > kNamed) {
    text += c10::str(" and ", tensors.size() - kNamed, " more");
  }
  return text;
}

// The work whose callbacks run on this thread.
thread_local const Work* marking_here = nullptr;

}  // namespace

Work::Work(std::shared_ptr<Group> group, const Facts& facts,
           std::vector<at::Tensor> inputs, std::vector<at::Tensor> results)
    : c10d::Work(group->rank(), facts.type, facts.title,
                 inputs.empty() ? std::nullopt : std::make_optional(inputs)),
      group_(std::move(group)),
      key_(works_made.fetch_add(1, std::memory_order_relaxed) + 1),
      facts_(facts),
      begun_(Clock::now()),
      deadline_(begun_ + facts.timeout +
                (facts.timeout < group_->session().timeout()
                     ? Milliseconds(0)
                     : kForTheWatchdog)),
      inputs_(std::move(inputs)),
      results_(std::move(results)) {
  group_->Enter();
}

Work::~Work() = default;

void* Work::Hold() {
  calls_.fetch_add(1, std::memory_order_relaxed);
  c10::raw::intrusive_ptr::incref(this);
  return this;
}

void Work::Release(gf_status started, uint64_t ticket) {
  if (started == GF_OK) {
    const std::lock_guard lock(mutex_);
    tickets_.push_back(ticket);
    return;
  }
  // The call did not start, so `done` does not run.
  calls_.fetch_sub(1, std::memory_order_relaxed);
  c10::raw::intrusive_ptr::decref(this);
  const std::string text = gf_last_error();
  // The others had found out that this rank calls something else before this
  // call began.
  if (IsMismatch(started) && !InCallback::Here() &&
      gf_comm_check(Session::Use(group_->session())) == started) {
    group_->session().testimony().Remember(Description());
    Fail(MakeError(started, Description(), text), /*mismatch=*/true);
    Rethrow();
  }
  std::rethrow_exception(MakeError(started, facts_.title, text));
}

bool Work::IsMismatch(gf_status status) const {
  return status == GF_INVALID_ARGUMENT && !c10d::isP2POp(opType_);
}

void Work::Start(gf_call call) {
  call.group = group_->id();
  const Session::Use session(group_->session());
  uint64_t ticket = 0;
  const gf_status started =
      gf_comm_start(session, &call, OnDone, Hold(), &ticket);
  Release(started, ticket);
}

void Work::Send(const void* data, size_t bytes, int peer, uint32_t tag) {
  const Session::Use session(group_->session());
  uint64_t ticket = 0;
  const gf_status started = gf_comm_send_start(
      session, group_->id(), data, bytes, peer, tag, OnDone, Hold(), &ticket);
  Release(started, ticket);
}

void Work::Receive(void* data, size_t bytes, int peer, uint32_t tag) {
  const Session::Use session(group_->session());
  uint64_t ticket = 0;
  if (peer != GF_ANY_RANK) source_ = peer;
  int32_t* source = peer == GF_ANY_RANK ? &source_ : nullptr;
  const gf_status started =
      gf_comm_recv_start(session, group_->id(), data, bytes, peer, tag, source,
                         OnDone, Hold(), &ticket);
  Release(started, ticket);
}

void Work::Commit() { CallEnded(); }

void Work::OnDone(void* self, gf_status status, const char* message) {
  const InCallback here;
  const auto work = c10::intrusive_ptr<Work>::reclaim(static_cast<Work*>(self));
  if (status != GF_OK) {
    std::string what = work->Description();
    if (status == GF_DEADLINE_EXCEEDED) {
      what = TimedOut(Clock::now() - work->begun_, what);
    }
    // An error of one call alone was returned when it started.
    const bool mismatch = work->IsMismatch(status);
    if (mismatch) work->group_->session().testimony().Remember(what);
    work->Fail(MakeError(status, what, message), mismatch);
    // ABORTED means ended on purpose, as by a process that exits: nothing to
    // report.
    if (status != GF_ABORTED) work->group_->hooks().Failed();
  }
  work->CallEnded();
}

void Work::Fail(std::exception_ptr error, bool mismatch) {
  const std::lock_guard lock(mutex_);
  if (error_) return;
  error_ = std::move(error);
  mismatch_ = mismatch;
}

void Work::CallEnded() {
  if (calls_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  // From here on this thread is alone.
  if (next_ && !error_) {
    const auto next = std::exchange(next_, nullptr);
    calls_.store(1, std::memory_order_relaxed);
    try {
      next(*this);
    } catch (...) {
      Fail(std::current_exception());
    }
    return CallEnded();
  }
  Complete();
}

void Work::Complete() {
  try {
    if (!error_) lent_.CopyBack();
  } catch (...) {
    Fail(std::current_exception());
  }
  lent_.Drop();
  next_ = nullptr;
  Future future;
  bool later = false;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    future = future_;
    later = for_python_;
  }
  if (later) {
    RunLater(
        [self = c10::intrusive_ptr<Work>::unsafe_reclaim_from_nonowning(this),
         future] {
          self->Mark(future);
          self->Finish();
        });
    return;
  }
  if (future) Mark(future);
  Finish();
}

// Called after the future has completed: a caller that sees the operation
// completed may use the future.
void Work::Finish() {
  const std::chrono::nanoseconds took = Clock::now() - begun_;
  took_.store(took.count(), std::memory_order_relaxed);
  done_.store(true, std::memory_order_release);
  if (!error_) group_->hooks().Completed(key_, took);
  finish(error_);
  GiveUp();
}

void Work::GiveUp() {
  if (counted_.exchange(false)) group_->Leave();
}

void Work::Mark(const Future& future) {
  const Work* outer = std::exchange(marking_here, this);
  try {
    if (error_) {
      future->setError(error_);
    } else {
      results_.Give(future);
    }
  } catch (const std::exception& error) {
    // This is the error of a callback, and nobody else receives it.
    LOG(ERROR) << "GradientFlow: a callback of " << Description()
               << " failed: " << error.what();
  }
  marking_here = outer;
}

bool Work::IsMarkingHere() const { return marking_here == this; }

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  bool ended = false;
  bool fresh = false;
  {
    const std::lock_guard lock(mutex_);
    ended = ended_;
    // In a fork nobody would complete the future.
    if (!ended) group_->session().CheckProcess();
    if (!future_) {
      fresh = true;
      future_ = results_.NewFuture();
    }
    // Callbacks written in Python may wait for other operations.
    if (!ended && PyGILState_Check()) for_python_ = true;
  }
  if (ended && fresh) Mark(future_);
  return future_;
}

// ---- How threads wait.

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

// ---- What users see.

bool Work::isSuccess() const {
  const std::lock_guard lock(mutex_);
  return !error_;
}

std::exception_ptr Work::exception() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

float Work::getDuration() const {
  return static_cast<float>(took_.load(std::memory_order_relaxed)) / 1e6F;
}

bool Work::IsReceive() const {
  return opType_ == c10d::OpType::RECV ||
         opType_ == c10d::OpType::RECVANYSOURCE;
}

int Work::sourceRank() const {
  TORCH_CHECK(IsReceive(), "GradientFlow: ", facts_.title,
              " has no source rank");
  return source_;
}

std::vector<at::Tensor> Work::result() {
  {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(ended_, "GradientFlow: ", Description(),
                " has no result yet: wait() for it");
  }
  return results_.Flat();
}

std::string Work::Description() const {
  std::string text = facts_.title;
  if (!facts_.detail.empty()) text += " (" + facts_.detail + ")";
  const std::string shapes =
      ShapesOf(inputs_.empty() ? results_.tensors() : inputs_);
  if (!shapes.empty()) text += " of " + shapes;
  text += ", number " + std::to_string(facts_.sequence) + " of rank " +
          std::to_string(rank_);
  if (group_->id() != 0) text += " in a group of " + group_->Description();
  return text;
}

}  // namespace gft
