#include "gradientflow/communicator/communicator.h"

#include <string>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/communicator/agreement.h"
#include "gradientflow/communicator/core.h"
#include "gradientflow/communicator/transport.h"
#include "gradientflow/config/settings_text.h"

namespace gradientflow {

Result<std::shared_ptr<Communicator>> Communicator::Open(
    const Options& options, const Exchange& exchange) {
  Options adapted = options;
  // A placeholder that is never looked up, and needs no token.
  if (exchange) adapted.rendezvous = "file:///exchange";
  Result<CommunicatorCore::Args> parts = CommunicatorCore::MakeArgs(adapted);
  if (!parts.ok()) return parts.status();
  const Options& in_force = parts.value().options;
  parts.value().logger->Log(LogLevel::kInfo, ChangedSettings(in_force));
  JoinArgs join;
  join.options = &in_force;
  join.agreement = AgreementText(in_force);
  join.clock = parts.value().clock.get();
  join.logger = parts.value().logger.get();
  join.exchange = exchange;
  Result<Transport> transport = Join(join);
  if (!transport.ok()) return transport.status();
  Result<std::unique_ptr<CommunicatorCore>> core = CommunicatorCore::Create(
      std::move(parts).value(), std::move(transport).value());
  if (!core.ok()) return core.status();
  return std::make_shared<Communicator>(std::move(core).value());
}

Communicator::Communicator(std::unique_ptr<CommunicatorCore> core)
    : core_(std::move(core)) {}

// A forked child has the memory, but neither the threads nor the descriptors,
// and locks in that memory may be held for ever. So nothing of the communicator
// runs there, not even its destructor.
Communicator::~Communicator() {
  if (forked()) LeaveBehind(core_.release());
}

Status Communicator::CheckProcess() const {
  if (!forked()) return Status();
  return Status(StatusCode::kFailedPrecondition,
                StrCat("this process is a fork of the one that opened the "
                       "communicator of rank ",
                       rank(),
                       ", which alone can use it; a fork may open one of its "
                       "own"));
}

int Communicator::rank() const { return core_->options().rank; }
int Communicator::size() const { return core_->options().size; }
const Options& Communicator::options() const { return core_->options(); }

int Communicator::local_rank() const { return core_->local().rank; }
int Communicator::local_size() const { return core_->local().ranks; }

Status Communicator::Check() const {
  GF_RETURN_IF_ERROR(CheckProcess());
  return core_->calls().Check();
}

Result<std::uint64_t> Communicator::Start(const CollectiveCall& call,
                                          Completion completion) {
  GF_RETURN_IF_ERROR(CheckProcess());
  return core_->calls().StartCollective(call, std::move(completion));
}

Result<std::uint64_t> Communicator::StartSend(const Message& message,
                                              const void* data,
                                              std::size_t bytes,
                                              Completion completion) {
  GF_RETURN_IF_ERROR(CheckProcess());
  return core_->calls().StartSend(
      message.group, message.peer, message.tag,
      {static_cast<const std::byte*>(data), bytes, {}}, std::move(completion));
}

Result<std::uint64_t> Communicator::StartRecv(const Message& message,
                                              void* data, std::size_t bytes,
                                              Completion completion) {
  GF_RETURN_IF_ERROR(CheckProcess());
  return core_->calls().StartRecv(message.group, message.peer, message.tag,
                                  {static_cast<std::byte*>(data), bytes, {}},
                                  message.source, std::move(completion));
}

Status Communicator::Wait(std::uint64_t ticket, double seconds) {
  GF_RETURN_IF_ERROR(CheckProcess());
  return core_->calls().Wait(ticket, seconds);
}

Status Communicator::Run(const CollectiveCall& call) {
  GF_RETURN_IF_ERROR(CheckProcess());
  return core_->calls().Run(call);
}

Status Communicator::Send(int peer, std::uint32_t tag, const void* data,
                          std::size_t bytes) {
  GF_RETURN_IF_ERROR(CheckProcess());
  return core_->calls().Send(0, peer, tag,
                             {static_cast<const std::byte*>(data), bytes, {}});
}

Status Communicator::Recv(int peer, std::uint32_t tag, void* data,
                          std::size_t bytes) {
  GF_RETURN_IF_ERROR(CheckProcess());
  return core_->calls().Recv(0, peer, tag,
                             {static_cast<std::byte*>(data), bytes, {}});
}

Status Communicator::OpenGroup(GroupId id, const std::vector<int>& ranks) {
  GF_RETURN_IF_ERROR(CheckProcess());
  if (id >= kFirstOwnGroup) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("group ", id, ": expected an id of 1 to ", kFirstOwnGroup - 1));
  }
  return core_->calls().OpenGroup(id, ranks);
}

Status Communicator::CloseGroup(GroupId id) {
  GF_RETURN_IF_ERROR(CheckProcess());
  if (!core_->GradientsAreFree(id)) {
    return Status(StatusCode::kFailedPrecondition,
                  StrCat("group ", id, " has a session: close that first"));
  }
  return core_->calls().CloseGroup(id);
}

Status Communicator::SetStream(void* native) {
  GF_RETURN_IF_ERROR(CheckProcess());
  if (core_->device() == nullptr) return Status();
  Status status;
  core_->progress().Do(
      [&] { status = core_->device()->sync().SetProducer(native); });
  return status;
}

Result<BufferView> Communicator::AllocateShared(std::size_t bytes) {
  GF_RETURN_IF_ERROR(CheckProcess());
  return core_->AllocateShared(bytes);
}

void Communicator::FreeShared(BufferView view) {
  if (!forked()) core_->FreeShared(view.data);
}

void Communicator::Abort(const Status& why) {
  if (!forked()) core_->Abort(why);
}

}  // namespace gradientflow
