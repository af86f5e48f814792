#include "gradientflow/session/guarded_session.h"

#include <utility>

#include "gradientflow/base/fork.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow {

Status Session::CheckProcess() const {
  if (!forked()) return Status();
  return Status(StatusCode::kFailedPrecondition,
                StrCat("this process is a fork of the one that opened the "
                       "session of rank ",
                       rank(),
                       ", which alone can use it; a fork may open a session "
                       "of its own"));
}

namespace {

class GuardedSession final : public Session {
 public:
  explicit GuardedSession(std::unique_ptr<Session> session)
      : session_(std::move(session)) {}
  ~GuardedSession() override {
    if (forked()) LeaveBehind(session_.release());
  }
  GuardedSession(const GuardedSession&) = delete;
  GuardedSession& operator=(const GuardedSession&) = delete;

  // What does not change while the session is open.
  int rank() const override { return session_->rank(); }
  int size() const override { return session_->size(); }
  const Options& options() const override { return session_->options(); }
  std::size_t tensors() const override { return session_->tensors(); }
  BufferView gradient(std::size_t i) const override {
    return session_->gradient(i);
  }
  BufferView pool() const override { return session_->pool(); }
  std::size_t pool_offset(std::size_t i) const override {
    return session_->pool_offset(i);
  }

  // FinishStep() says what these do not.
  void GradientReady(std::size_t i) override {
    if (!forked()) session_->GradientReady(i);
  }
  void GradientAbsent(std::size_t i) override {
    if (!forked()) session_->GradientAbsent(i);
  }
  std::vector<std::uint8_t> selection() const override {
    return forked() ? std::vector<std::uint8_t>() : session_->selection();
  }
  void FreeShared(BufferView view) override {
    if (!forked()) session_->FreeShared(view);
  }
  void Abort(const Status& why) override {
    if (!forked()) session_->Abort(why);
  }

  Status SetStream(void* native) override {
    GF_RETURN_IF_ERROR(CheckProcess());
    return session_->SetStream(native);
  }
  Status SetLossScale(float scale) override {
    GF_RETURN_IF_ERROR(CheckProcess());
    return session_->SetLossScale(scale);
  }
  Result<StepStats> FinishStep() override {
    GF_RETURN_IF_ERROR(CheckProcess());
    return session_->FinishStep();
  }
  Status OptimizerStep(const std::vector<OptimizerGroup>& groups) override {
    GF_RETURN_IF_ERROR(CheckProcess());
    return session_->OptimizerStep(groups);
  }
  Result<std::vector<std::byte>> SaveState() const override {
    GF_RETURN_IF_ERROR(CheckProcess());
    return session_->SaveState();
  }
  Result<std::size_t> StateBytes() const override {
    GF_RETURN_IF_ERROR(CheckProcess());
    return session_->StateBytes();
  }
  Status RestoreState(std::span<const std::byte> state) override {
    GF_RETURN_IF_ERROR(CheckProcess());
    return session_->RestoreState(state);
  }
  Result<std::uint64_t> Start(const CollectiveCall& call) override {
    GF_RETURN_IF_ERROR(CheckProcess());
    return session_->Start(call);
  }
  Status Wait(std::uint64_t ticket) override {
    GF_RETURN_IF_ERROR(CheckProcess());
    return session_->Wait(ticket);
  }
  Status Run(const CollectiveCall& call) override {
    GF_RETURN_IF_ERROR(CheckProcess());
    return session_->Run(call);
  }
  Status OpenGroup(GroupId id, const std::vector<int>& ranks) override {
    GF_RETURN_IF_ERROR(CheckProcess());
    return session_->OpenGroup(id, ranks);
  }
  Status CloseGroup(GroupId id) override {
    GF_RETURN_IF_ERROR(CheckProcess());
    return session_->CloseGroup(id);
  }
  Result<std::uint64_t> StartThen(const CollectiveCall& call,
                                  Completion completion) override {
    GF_RETURN_IF_ERROR(CheckProcess());
    return session_->StartThen(call, std::move(completion));
  }
  Result<std::uint64_t> StartSend(const Message& message, const void* data,
                                  std::size_t bytes,
                                  Completion completion) override {
    GF_RETURN_IF_ERROR(CheckProcess());
    return session_->StartSend(message, data, bytes, std::move(completion));
  }
  Result<std::uint64_t> StartRecv(const Message& message, void* data,
                                  std::size_t bytes,
                                  Completion completion) override {
    GF_RETURN_IF_ERROR(CheckProcess());
    return session_->StartRecv(message, data, bytes, std::move(completion));
  }
  Status Await(std::uint64_t ticket, double seconds) override {
    GF_RETURN_IF_ERROR(CheckProcess());
    return session_->Await(ticket, seconds);
  }
  Status Check() const override {
    GF_RETURN_IF_ERROR(CheckProcess());
    return session_->Check();
  }
  Status Send(int peer, std::uint32_t tag, const void* data,
              std::size_t bytes) override {
    GF_RETURN_IF_ERROR(CheckProcess());
    return session_->Send(peer, tag, data, bytes);
  }
  Status Recv(int peer, std::uint32_t tag, void* data,
              std::size_t bytes) override {
    GF_RETURN_IF_ERROR(CheckProcess());
    return session_->Recv(peer, tag, data, bytes);
  }
  Result<BufferView> AllocateShared(std::size_t bytes) override {
    GF_RETURN_IF_ERROR(CheckProcess());
    return session_->AllocateShared(bytes);
  }

 private:
  std::unique_ptr<Session> session_;
};

}  // namespace

std::unique_ptr<Session> Guard(std::unique_ptr<Session> session) {
  return std::make_unique<GuardedSession>(std::move(session));
}

}  // namespace gradientflow
