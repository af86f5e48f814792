#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/buckets/aggregator.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/buckets/tuner.h"
#include "gradientflow/buckets/tuning.h"
#include "gradientflow/collectives/executor.h"
#include "gradientflow/communicator/completions.h"
#include "gradientflow/communicator/messages.h"
#include "gradientflow/communicator/progress.h"
#include "gradientflow/device/device.h"
#include "gradientflow/observe/logger.h"
#include "gradientflow/observe/recorder.h"
#include "gradientflow/optimizer/optimizer.h"
#include "gradientflow/session.h"
#include "gradientflow/session/device_side.h"
#include "gradientflow/session/engine.h"
#include "gradientflow/session/pool_memory.h"
#include "gradientflow/session/state_claim.h"
#include "gradientflow/session/state_file.h"
#include "gradientflow/session/step_state.h"
#include "gradientflow/session/transport.h"

namespace gradientflow {

// A session over ranks that are joined already. See session.h for what its
// methods promise.
class SessionImpl final : public Session {
 public:
  // What does not depend on the other ranks.
  struct Parts {
    Options options;
    std::vector<TensorSpec> tensors;
    std::unique_ptr<Clock> clock;
    std::unique_ptr<Logger> logger;
    std::unique_ptr<Recorder> recorder;
    std::function<void()> drain_recorder;  // May be empty.
    // In place of what the options ask for; may be null.
    std::shared_ptr<Device> device;
  };
  static Result<std::unique_ptr<SessionImpl>> Create(Parts parts,
                                                     Transport transport);
  ~SessionImpl() override;

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  const Options& options() const override { return options_; }
  std::size_t tensors() const override { return layout_.tensors(); }
  BufferView gradient(std::size_t i) const override;
  BufferView pool() const override {
    return device_side_ ? device_side_->pool() : pool_.view();
  }
  std::size_t pool_offset(std::size_t i) const override {
    return layout_.offset(i);
  }
  Status SetStream(void* native) override;
  void GradientReady(std::size_t i) override;
  void GradientAbsent(std::size_t i) override;
  Result<StepStats> FinishStep() override;
  Status SetLossScale(float scale) override;
  using Session::OptimizerStep;
  Status OptimizerStep(const std::vector<OptimizerGroup>& groups) override;
  std::vector<std::uint8_t> selection() const override { return selection_; }
  Result<std::vector<std::byte>> SaveState() const override;
  Result<std::size_t> StateBytes() const override;
  Status RestoreState(std::span<const std::byte> state) override;
  Result<std::uint64_t> Start(const CollectiveCall& call) override;
  Status Wait(std::uint64_t ticket) override;
  Status OpenGroup(GroupId id, const std::vector<int>& ranks) override;
  Status CloseGroup(GroupId id) override;
  Result<std::uint64_t> StartThen(const CollectiveCall& call,
                                  Completion completion) override;
  Result<std::uint64_t> StartSend(const Message& message, const void* data,
                                  std::size_t bytes,
                                  Completion completion) override;
  Result<std::uint64_t> StartRecv(const Message& message, void* data,
                                  std::size_t bytes,
                                  Completion completion) override;
  Status Await(std::uint64_t ticket, double seconds) override;
  Status Check() const override;
  Status Run(const CollectiveCall& call) override;
  Status Send(int peer, std::uint32_t tag, const void* data,
              std::size_t bytes) override;
  Status Recv(int peer, std::uint32_t tag, void* data,
              std::size_t bytes) override;
  Result<BufferView> AllocateShared(std::size_t bytes) override;
  void FreeShared(BufferView view) override;
  void Abort(const Status& why) override;

 private:
  // An operation that somebody waits for, or is to be told of.
  struct Pending {
    bool done = false;
    Status status;
    std::uint64_t ticket = 0;
    Completion completion = {};  // Empty: somebody waits.
    SessionImpl* session = nullptr;
  };

  SessionImpl(Parts parts, Transport transport, PoolLayout layout);
  Status Build();
  Status BuildDevice();
  void CloseDevice();
  EngineParts PartsOfEngine();
  // What aggregators call.
  Collective& GradientCollective() const;
  std::uint64_t BytesSent() const {
    return GradientCollective().bytes_sent(Channel::kGradients);
  }
  // kInvalidArgument: never given out.
  Status CheckTicket(std::uint64_t ticket) const;
  bool ReachesDevice(const CollectiveCall& call) const;
  bool GoesToDeviceEmpty(const CollectiveCall& call) const;
  void StartCall(const CollectiveCall& call, Pending* pending);
  Status BuildAggregator();
  Status Agree();
  bool GoesByMeasurement() const;
  Status Measure();
  // OK, or what `call` is told now. With the baton held.
  Status Admit(StepCall call) const;
  // A call that runs for a while without the baton, from when it was admitted
  // to the end of the scope; others are told that it runs.
  class Turn {
   public:
    Turn(const SessionImpl& session, StepCall call);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    // OK, or why the call is refused.
    const Status& status() const { return status_; }
    // It is refused because the session has failed.
    bool session_failed() const { return session_failed_; }

   private:
    const SessionImpl& session_;
    Status status_;
    bool session_failed_ = false;
  };
  Status StepFailure(const Status& why) const;
  // This rank has failed in a way that the others cannot see: takes no more
  // steps, and ends the job. Returns the first reason. With the baton held.
  Status GiveUp(const Status& why);
  Result<StepStats> CloseStep();
  Status CheckOptimizer(const std::vector<OptimizerGroup>& groups) const;
  Status Update(std::size_t index, const OptimizerGroup& group);
  void Tune();
  // Runs `start` with what its Done needs, and gives it a ticket. `start` needs
  // `group` to be open, and may refuse.
  Result<std::uint64_t> StartPending(
      GroupId group, Completion completion,
      const std::function<Status(const CallGroup&, Pending*)>& start);
  Status CheckState(const SavedState& state) const;
  Status AgreeOnState(const StateClaim& mine);
  Status ApplyState(const SavedState& state);
  static void OnDone(void* pending, std::uint64_t, std::uint32_t,
                     const Status& status);

  Options options_;
  const std::unique_ptr<Clock> clock_;
  const std::unique_ptr<Logger> logger_;
  const std::unique_ptr<Recorder> recorder_;
  const std::function<void()> drain_recorder_;
  std::shared_ptr<Device> device_;
  std::vector<TensorSpec> specs_;
  std::vector<std::string> names_;
  const PoolLayout layout_;
  Transport transport_;
  PoolMemory pool_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<DeviceSide> device_side_;  // Null: all is the host's.
  std::unique_ptr<Aggregator> aggregator_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Messages> messages_;
  Completions completions_;  // Touched with the baton held.
  bool closing_ = false;     // Likewise.
  std::unique_ptr<Progress> progress_;

  MeasuredCosts costs_;
  std::size_t bucket_bytes_ = 0;
  bool tuning_ = false;
  std::uint64_t job_ = 0;         // See SavedState.
  std::unique_ptr<Tuner> tuner_;  // Null: theta stays as it is.
  std::uint64_t step_ = 0;
  float loss_scale_ = 1.0F;
  std::uint64_t bytes_before_ = 0;
  mutable StepState step_state_;  // Touched with the baton held.
  // Of the step last finished.
  std::vector<Extent> exchanged_;
  std::vector<std::uint8_t> selection_;
  bool skip_update_ = false;
  float gradient_scale_ = 1.0F;

  // Touched with the baton held.
  std::map<std::uint64_t, std::unique_ptr<Pending>> tickets_;
  std::uint64_t next_ticket_ = 1;
  std::map<std::byte*, PoolMemory> shared_;
};

// A session over a transport made elsewhere: ranks that are threads (see
// session/inproc.h), tests.
Result<std::unique_ptr<Session>> OpenOver(
    Transport transport, const Options& options,
    const std::vector<TensorSpec>& tensors,
    std::shared_ptr<Device> device = nullptr);

}  // namespace gradientflow
