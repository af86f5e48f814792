#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradientflow/buckets/aggregator.h"
#include "gradientflow/buckets/tuner.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/communicator/core.h"
#include "gradientflow/session.h"
#include "gradientflow/session/closing_notes.h"
#include "gradientflow/session/engine.h"
#include "gradientflow/session/gradient_pool.h"
#include "gradientflow/session/profiler.h"
#include "gradientflow/session/step_state.h"

namespace gradientflow {

// Borrowed unless a comment says otherwise; outlives the steps.
struct StepsArgs {
  CommunicatorCore* core = nullptr;
  const Options* options = nullptr;
  const PoolLayout* layout = nullptr;
  // Names of the tensors, by tensor.
  const std::vector<std::string>* names = nullptr;
  GradientPool* pool = nullptr;
  Aggregator* aggregator = nullptr;
  std::unique_ptr<Tuner> tuner;  // Handed over. If null, theta never changes.
  std::unique_ptr<Profiler> profiler;  // Handed over. If null, none is wanted.
  std::size_t bucket_bytes = 0;
  CallGroup ranks;       // The session's ranks.
  GroupId group = 0;     // The group whose gradient channel the session has.
  GroupId notes_id = 0;  // See ClosingNotes.
};

// A session's training steps: what FinishStep() and the optimiser do, and which
// calls are legal when (step_state.h). Hooks go to its engine (engine.h), which
// is next in the data path. See session.h for what the public methods promise.
class Steps {
 public:
  explicit Steps(StepsArgs args);
  // If all ranks close in the middle of the same step, within some seconds,
  // they end it together, and the job goes on. The job also goes on if a rank
  // closes between two steps and nothing is in flight. Otherwise it ends.
  ~Steps();
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  Engine& engine() { return engine_; }
  void GradientAbsent(std::size_t i);
  Status SetStream(void* native);
  Result<StepStats> FinishStep();
  Result<AsyncStep> FinishStepAsync();
  Status SetLossScale(float scale);
  Status OptimizerStep(const std::vector<OptimizerGroup>& groups);
  Status ZeroGradients();
  const std::vector<std::uint8_t>& selection() const { return selection_; }
  BufferView gradient(std::size_t i) const;

  // A call that runs for a while without the baton, from its admission to the
  // end of the scope. Meanwhile other calls are told that it runs.
  class Turn {
   public:
    Turn(Steps& steps, StepCall call);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    // OK, or why the call is refused.
    const Status& status() const { return status_; }
    // True if the call is refused because the session has failed.
    bool session_failed() const { return session_failed_; }

   private:
    Steps& steps_;
    Status status_;
    bool session_failed_ = false;
  };

  // What is saved between two steps, and where a restored session goes on.
  // REQUIRES a Turn.
  struct Position {
    std::uint64_t step = 0;  // The number of the next step.
    float loss_scale = 1.0F;
  };
  Position position() const { return {step_, loss_scale_}; }
  Aggregator& aggregator() { return *args_.aggregator; }
  // Returns kFailedPrecondition if a gradient was marked meanwhile. REQUIRES
  // that the caller holds the baton.
  Status CheckUntouched() const;
  // To be called after the aggregator's own Restore(). REQUIRES that the caller
  // holds the baton.
  void GoOnFrom(const Position& position);

  // Returns OK, or why `call` is refused. REQUIRES that the caller holds the
  // baton.
  Status Admit(StepCall call) const;
  // This rank has failed in a way that the other ranks cannot see. The session
  // takes no more steps, and the job ends. Returns the first reason. REQUIRES
  // that the caller holds the baton.
  Status GiveUp(const Status& why);

 private:
  EngineArgs ArgsOfEngine();
  bool Busy() const;
  bool AwaitOthers();
  std::uint64_t BytesSent() const {
    return args_.pool->collective().bytes_sent(args_.group,
                                               Channel::kGradients);
  }
  RemoteWrites Written() const;
  Status StepFailure(const Status& why) const;
  Result<bool> EndBackward(bool* admitted, bool* over);
  Result<StepStats> CloseStep();
  Result<AsyncStep> LeaveStep();
  void TakeExchange();
  void TakeTimes(const EngineTimes& times);
  std::vector<float> ReadyIfWanted() const;
  StepStats TakeStats();
  bool TakeResult();
  void AwaitResult();
  void Tune(std::vector<float> ready_seconds);
  void Profile(const EngineTimes& times);
  void WriteProfile();
  // Returns whether times that ranks tell each other, for the tuner or for a
  // profile, are in flight.
  bool Telling() const {
    return (args_.tuner != nullptr && args_.tuner->in_flight()) ||
           (args_.profiler != nullptr && args_.profiler->in_flight());
  }
  Status CheckOptimizer(const std::vector<OptimizerGroup>& groups) const;

  StepsArgs args_;
  Progress& progress_;
  const int rank_;  // In the job.
  Engine engine_;
  std::uint64_t step_ = 0;
  float loss_scale_ = 1.0F;
  std::uint64_t bytes_before_ = 0;
  RemoteWrites written_before_;
  // Number of steps; a restored state does not change it.
  std::uint64_t finished_ = 0;
  ClosingNotes notes_;    // Guarded by the baton.
  bool closing_ = false;  // Guarded by the baton.
  StepState step_state_;  // Guarded by the baton.
  // The step that finished last: what it has exchanged, and what is known of
  // it.
  std::vector<Extent> exchanged_;
  std::vector<std::uint8_t> selection_;
  const std::uint32_t* device_slots_ = nullptr;
  const std::uint32_t* device_nonfinite_ = nullptr;
  bool skip_update_ = false;
  float gradient_scale_ = 1.0F;
  StepStats stats_;
  // After FinishStepAsync(): the loss scale of the step that is open, and
  // statistics that no call has returned.
  float open_scale_ = 1.0F;
  std::optional<StepStats> known_;
};

}  // namespace gradientflow
