#include "gradientflow/session/steps.h"

#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/config/options.h"
#include "gradientflow/csc/csc.h"
#include "gradientflow/optimizer/optimizer.h"

// How a session ends is in steps_closing.cc.
namespace gradientflow {

Steps::Steps(StepsArgs args)
    : args_(std::move(args)),
      progress_(args_.core->progress()),
      rank_(args_.core->options().rank),
      engine_(ArgsOfEngine(), args_.options->overlap),
      loss_scale_(args_.options->loss_scale),
      notes_(args_.core->fabric(), args_.ranks, args_.notes_id) {
  progress_.Do([this] {
    bytes_before_ = BytesSent();
    written_before_ = Written();
    engine_.Begin(step_, loss_scale_);
    args_.core->driver().Add(&engine_);
  });
}

EngineArgs Steps::ArgsOfEngine() {
  EngineArgs args;
  args.layout = args_.layout;
  args.names = args_.names;
  args.fabric = &args_.core->fabric();
  args.driver = &args_.core->driver();
  args.collective = &args_.pool->collective();
  args.group = args_.group;
  args.aggregator = args_.aggregator;
  args.handover = &args_.pool->handover();
  args.wire = args_.pool->wire_times();
  args.clock = &args_.core->clock();
  args.recorder = &args_.core->recorder();
  args.before_buckets = [this] {
    if (args_.options->accumulate && !step_state_.zeroed() &&
        !engine_.given_up()) {
      args_.core->fabric().Fail(
          Status(StatusCode::kInvalidArgument,
                 StrCat("rank ", rank_,
                        " gave the job up: with accumulate=on, "
                        "ZeroGradients() comes before a gradient of step ",
                        step_)));
    }
    if (args_.tuner != nullptr) args_.tuner->Send(step_);
    if (args_.profiler != nullptr) args_.profiler->Send(step_);
  };
  args.take_result = [this] { return TakeResult(); };
  args.while_in_step = [this] {
    if (closing_) return;
    // A step that was left cannot go on without the others.
    const bool left = engine_.result_open() && engine_.untouched();
    const Status closed = notes_.Check(finished_ - (left ? 1 : 0),
                                       left || engine_.backward_over());
    if (!closed.ok()) args_.core->fabric().Fail(closed);
  };
  return args;
}

BufferView Steps::gradient(std::size_t i) const {
  const BufferView pool = args_.pool->view();
  const std::size_t element_bytes = SizeOf(args_.options->pool_dtype);
  return {pool.data + args_.layout->offset(i) * element_bytes,
          args_.layout->tensor_elements(i) * element_bytes, pool.device};
}

Status Steps::Admit(StepCall call) const {
  const bool touched = !engine_.untouched();
  const Status& job = args_.core->fabric().status();
  // FinishStep() still runs after a failure: it waits until nothing uses the
  // gradients any more.
  if ((touched || engine_.result_open()) && !job.ok() &&
      !step_state_.failed() && call != StepCall::kFinishStep) {
    return StepFailure(job);
  }
  return step_state_.Admit(call, step_, touched);
}

Steps::Turn::Turn(Steps& steps, StepCall call) : steps_(steps) {
  // An update reads the step's result on the device.
  if (call != StepCall::kOptimizerStep) steps.AwaitResult();
  steps.progress_.Do([&] {
    status_ = steps.Admit(call);
    session_failed_ = steps.step_state_.failed();
    if (status_.ok()) steps.step_state_.Begins(call);
  });
}

Steps::Turn::~Turn() {
  if (!status_.ok()) return;
  steps_.progress_.Do([&] { steps_.step_state_.Ends(); });
}

// Returns zeros if no link writes into the memory of peers.
RemoteWrites Steps::Written() const {
  WriteCounter* const writes = args_.core->writes();
  return writes == nullptr ? RemoteWrites() : writes->Count();
}

Status Steps::StepFailure(const Status& why) const {
  // A step that was left may have failed while the next one is open.
  const std::uint64_t failed = step_ - (engine_.result_open() ? 1 : 0);
  return Status(why.code(), StrCat("step ", failed, " on rank ", rank_,
                                   " failed: ", why.message()));
}

Status Steps::GiveUp(const Status& why) {
  const Status first = step_state_.Fail(why);
  args_.core->Fail(first);
  return first;
}

Status Steps::SetStream(void* native) {
  Status status;
  progress_.Do([&] {
    status = Admit(StepCall::kSetStream);
    if (!status.ok()) return;
    status = args_.pool->SetStream(native);
    if (status.ok() && engine_.result_open()) {
      status = args_.pool->handover().Follow(*args_.aggregator->end());
    }
  });
  return status;
}

void Steps::GradientAbsent(std::size_t i) {
  // Only the thread that has claimed the tensor may touch it.
  if (!engine_.Claim(i)) return progress_.Notify();
  const BufferView view = gradient(i);
  // With `accumulate`, the tensor keeps what it holds.
  if (view.bytes > 0 && !args_.options->accumulate) {
    const Status zeroed = args_.pool->Zero(view);
    if (!zeroed.ok()) {
      engine_.Misused(zeroed);
      return progress_.Notify();
    }
  }
  if (engine_.Publish(i)) progress_.Notify();
}

// Admits the end of a step, and ends backward, once each. Returns false, or an
// error, if that is refused; the step then goes on.
Result<bool> Steps::EndBackward(bool* admitted, bool* over) {
  if (!*admitted) {
    GF_RETURN_IF_ERROR(Admit(StepCall::kFinishStep));
    step_state_.Begins(StepCall::kFinishStep);
    *admitted = true;
  }
  if (*over || !args_.core->fabric().status().ok()) return true;
  if (const Status missing = engine_.EndBackward(); !missing.ok()) {
    step_state_.Ends();
    return missing;
  }
  *over = true;
  return true;
}

// Drive() repeats the function on whichever thread holds the baton, between
// rounds of communication, until it returns true.
Result<StepStats> Steps::FinishStep() {
  Result<StepStats> stats = Status(StatusCode::kInternal, "not run");
  bool admitted = false;
  bool over = false;
  progress_.Drive([&] {
    if (const auto ended = EndBackward(&admitted, &over); !ended.ok()) {
      stats = ended.status();
      return true;
    }
    engine_.LookForResult();
    if (!engine_.StepDone() || Telling()) return false;
    stats = CloseStep();
    known_.reset();  // Of a step before this one.
    return true;
  });
  WriteProfile();
  return stats;
}

Result<AsyncStep> Steps::FinishStepAsync() {
  Result<AsyncStep> left = Status(StatusCode::kInternal, "not run");
  bool admitted = false;
  bool over = false;
  progress_.Drive([&] {
    if (const auto ended = EndBackward(&admitted, &over); !ended.ok()) {
      left = ended.status();
      return true;
    }
    if (!engine_.Submitted() || Telling()) return false;
    // A profile is of steps whose times are known.
    if (args_.profiler != nullptr) {
      engine_.LookForResult();
      if (!engine_.StepDone()) return false;
    }
    left = LeaveStep();
    return true;
  });
  WriteProfile();
  return left;
}

// Opens the next step before hooks can fire, and leaves the result of this one
// for later. Without a device, or once the device is done, it is there already.
Result<AsyncStep> Steps::LeaveStep() {
  AsyncStep left;
  left.step = step_;
  Aggregator& aggregator = *args_.aggregator;
  const Status& job = args_.core->fabric().status();
  if (!job.ok() || aggregator.Done()) {
    const Result<StepStats> stats = CloseStep();
    if (!stats.ok()) return stats.status();
    known_ = stats.value();
  } else {
    const Status ordered = args_.pool->handover().Follow(*aggregator.end());
    if (!ordered.ok()) return GiveUp(StepFailure(ordered));
    left.event = aggregator.end()->native();
    TakeExchange();
    engine_.Leave(step_ + 1);
    ++step_;
    ++finished_;
    open_scale_ = loss_scale_;
    step_state_.Finished();
  }
  left.known = std::exchange(known_, std::nullopt);
  return left;
}

// The result of the step that was left is known: begins the next one, which may
// have gradients already.
bool Steps::TakeResult() {
  if (!args_.aggregator->result().status.ok()) return false;
  TakeTimes(engine_.LeftTimes());
  known_ = TakeStats();
  if (args_.tuner != nullptr) Tune(ReadyIfWanted());
  args_.aggregator->Begin(step_, open_scale_);
  return true;
}

void Steps::AwaitResult() {
  progress_.Drive([this] {
    if (!engine_.result_open() || !args_.core->fabric().status().ok()) {
      return true;
    }
    engine_.LookForResult();
    return false;
  });
}

// Takes what is known as soon as all of the step is submitted.
void Steps::TakeExchange() {
  const Aggregator& aggregator = *args_.aggregator;
  const AggregateResult& result = aggregator.result();
  stats_ = StepStats();
  stats_.step = step_;
  stats_.buckets = result.buckets;
  stats_.selected_chunks = result.selected_chunks;
  stats_.chunks = result.chunks;
  stats_.bucket_bytes = args_.bucket_bytes;
  stats_.gradient_scale = gradient_scale_ = result.gradient_scale;
  skip_update_ = result.nonfinite;
  exchanged_.assign(aggregator.exchanged().begin(),
                    aggregator.exchanged().end());
  selection_.assign(aggregator.selection().begin(),
                    aggregator.selection().end());
  device_slots_ = aggregator.device_slots();
  device_nonfinite_ = aggregator.device_nonfinite();
}

// Takes the times, which a device knows once the step is done.
void Steps::TakeTimes(const EngineTimes& times) {
  stats_.backward_seconds = times.backward_seconds;
  stats_.exposed_seconds = times.exposed_seconds;
  stats_.hidden_seconds = times.hidden_seconds;
}

std::vector<float> Steps::ReadyIfWanted() const {
  if (!args_.tuner->Wants()) return {};
  return engine_.ReadySeconds();
}

// Takes the rest, once the step is done.
StepStats Steps::TakeStats() {
  stats_.nonfinite = args_.aggregator->result().nonfinite;
  stats_.bytes_sent = BytesSent() - bytes_before_;
  bytes_before_ = BytesSent();
  if (args_.core->writes() != nullptr) {
    const RemoteWrites written = Written();
    stats_.rdma = written.Since(std::exchange(written_before_, written));
  }
  return stats_;
}

// Takes the results of the step, and opens the next one before hooks can fire.
Result<StepStats> Steps::CloseStep() {
  const EngineTimes times = engine_.End();
  const AggregateResult& result = args_.aggregator->result();
  const Status& job = args_.core->fabric().status();
  if (!job.ok() || !result.status.ok()) {
    // The other ranks may not know yet what has failed here.
    args_.core->fabric().Fail(result.status);
    return step_state_.Fail(StepFailure(job));
  }
  TakeExchange();
  TakeTimes(times);
  Profile(times);
  const StepStats stats = TakeStats();
  ++step_;
  ++finished_;
  if (args_.tuner != nullptr) Tune(ReadyIfWanted());
  step_state_.Finished();
  engine_.Begin(step_, loss_scale_);
  return stats;
}

// Runs between two steps, and on all ranks between the same two.
void Steps::Tune(std::vector<float> ready_seconds) {
  if (const std::optional<std::size_t> bytes = args_.tuner->Take()) {
    args_.bucket_bytes = *bytes;
    args_.aggregator->SetBucketBytes(*bytes);
  }
  args_.tuner->StepDone(std::move(ready_seconds));
}

void Steps::Profile(const EngineTimes& times) {
  if (args_.profiler == nullptr) return;
  Profiler& profiler = *args_.profiler;
  engine_.ReadySeconds(profiler.ready_seconds());
  profiler.StepEnded({times.first, times.over, times.end});
}

// Runs without the baton, so that other sessions go on. Training goes on
// without a profile, so a failure is only a warning.
void Steps::WriteProfile() {
  if (args_.profiler == nullptr) return;
  const Status written = args_.profiler->WriteIfDue();
  if (!written.ok()) {
    args_.core->logger().Log(LogLevel::kWarning, written.message());
  }
}

Status Steps::SetLossScale(float scale) {
  if (!IsLossScale(scale)) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("loss scale ", scale, ", expected a positive number"));
  }
  Status status;
  progress_.Do([&] {
    status = Admit(StepCall::kSetLossScale);
    if (!status.ok()) return;
    loss_scale_ = scale;
    if (!engine_.untouched()) return;
    open_scale_ = scale;
    if (!engine_.result_open()) args_.aggregator->Begin(step_, scale);
  });
  return status;
}

// Checks what does not depend on the step.
Status Steps::CheckOptimizer(const std::vector<OptimizerGroup>& groups) const {
  GF_RETURN_IF_ERROR(CheckGroups(*args_.layout, groups));
  if (args_.options->sparsity <= 0 ||
      args_.options->residual != ResidualMode::kMomentum) {
    return Status();
  }
  for (const OptimizerGroup& group : groups) {
    if (group.config.momentum == args_.options->momentum) continue;
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("the optimiser's momentum is ", group.config.momentum,
               ", but what is kept back decays by ", args_.options->momentum,
               " (residual=momentum): set option momentum to the optimiser's"));
  }
  return Status();
}

// Runs without the baton, except for its bookkeeping: an update takes time, and
// other sessions go on meanwhile.
Status Steps::OptimizerStep(const std::vector<OptimizerGroup>& groups) {
  const Turn turn(*this, StepCall::kOptimizerStep);
  GF_RETURN_IF_ERROR(turn.status());
  GF_RETURN_IF_ERROR(CheckOptimizer(groups));
  const GradientPool::Sent sent = {exchanged_, device_slots_, device_nonfinite_,
                                   gradient_scale_};
  Status status;
  std::size_t updated = 0;
  const Clock::Time begin = args_.core->clock().Now();
  while (!skip_update_ && updated < groups.size() && status.ok()) {
    status = args_.pool->Update(updated, groups[updated], sent);
    if (status.ok()) ++updated;
  }
  const bool refused = status.code() == StatusCode::kInvalidArgument ||
                       status.code() == StatusCode::kFailedPrecondition ||
                       status.code() == StatusCode::kResourceExhausted;
  if (refused && updated == 0) return status;  // Nothing has changed.
  if (args_.profiler != nullptr) {
    args_.profiler->OptimizerRan(begin, args_.core->clock().Now());
  }
  progress_.Do([&] {
    if (status.ok()) return step_state_.Applied(step_ - 1);
    // Weights and momentum now differ from those of other ranks.
    status = GiveUp(
        Status(status.code(), StrCat("applying step ", step_ - 1, " on rank ",
                                     rank_, ": ", status.message())));
  });
  return status;
}

Status Steps::ZeroGradients() {
  const Turn turn(*this, StepCall::kZeroGradients);
  GF_RETURN_IF_ERROR(turn.status());
  bool due = false;
  progress_.Do([&] { due = !step_state_.zeroed(); });
  // Otherwise backward may have begun to add to what has been zeroed.
  if (!args_.options->accumulate || !due) return Status();
  GF_RETURN_IF_ERROR(args_.aggregator->ZeroSent());
  progress_.Do([this] { step_state_.Zeroed(); });
  return Status();
}

Status Steps::CheckUntouched() const {
  if (engine_.untouched()) return Status();
  return Status(StatusCode::kFailedPrecondition,
                StrCat("a gradient of step ", step_,
                       " was marked while RestoreState() ran"));
}

// The open step has no marked tensor, so it can begin again under another
// number.
void Steps::GoOnFrom(const Position& position) {
  step_ = position.step;
  loss_scale_ = position.loss_scale;
  known_.reset();
  step_state_.Restored();
  // Dense results have no residual that would replace them. Memory of the host
  // can always be zeroed, and a device's error shows at its next call.
  if (args_.options->accumulate) (void)args_.aggregator->ZeroSent();
  if (args_.tuner != nullptr) args_.tuner->Restart();
  if (args_.profiler != nullptr) args_.profiler->Restart();
  engine_.Begin(step_, loss_scale_);
}

}  // namespace gradientflow
