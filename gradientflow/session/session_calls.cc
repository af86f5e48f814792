#include "gradientflow/base/str_cat.h"
#include "gradientflow/session/session_impl.h"

// Collectives on plain buffers, and memory for them. Groups, messages and calls
// that call back: session_groups.cc.
namespace gradientflow {
namespace {

// Whether the call's buffers are as long on all ranks.
bool IsEven(CollectiveKind kind) {
  return kind != CollectiveKind::kAllToAll && kind != CollectiveKind::kGather &&
         kind != CollectiveKind::kScatter;
}

}  // namespace

void SessionImpl::OnDone(void* pending, std::uint64_t, std::uint32_t,
                         const Status& status) {
  auto& waited = *static_cast<Pending*>(pending);
  waited.done = true;
  waited.status = status;
  if (!waited.completion) return;
  SessionImpl& session = *waited.session;
  session.completions_.Add(
      {[&waited] { waited.completion(waited.status); },
       [&session, &waited] { session.tickets_.erase(waited.ticket); }});
}

Collective& SessionImpl::GradientCollective() const {
  if (device_side_ != nullptr) return device_side_->collective();
  return *executor_;
}

// Whether some of the call's elements are in the device's memory.
bool SessionImpl::ReachesDevice(const CollectiveCall& call) const {
  const CallBuffers buffers =
      BuffersOf(call, *executor_->FindGroup(call.group));
  return (buffers.input > 0 && device_->Owns(call.input)) ||
         (buffers.output > 0 && device_->Owns(call.output));
}

// Whether NCCL makes a call none of whose elements are in the device's memory,
// and not the executor. All ranks must say the same, those too that have no
// elements in it: where such a rank passes no pointer either, that is taken for
// the device's.
bool SessionImpl::GoesToDeviceEmpty(const CollectiveCall& call) const {
  if (call.kind == CollectiveKind::kBarrier) return false;
  const CallBuffers buffers = BuffersOf(call, transport_.group);
  if (buffers.input + buffers.output > 0) return false;
  if (IsEven(call.kind) && call.count == 0) return true;  // It ends at once.
  const void* pointer = call.output != nullptr ? call.output : call.input;
  return pointer == nullptr || device_->Owns(pointer);
}

void SessionImpl::StartCall(const CollectiveCall& call, Pending* pending) {
  const Done done = {&SessionImpl::OnDone, pending, 0};
  if (device_side_ == nullptr) return executor_->Start(call, done);
  const CallGroup* group = executor_->FindGroup(call.group);
  if (group == nullptr) return executor_->Start(call, done);  // It says so.
  const Status valid = ValidateCall(call, *group);
  if (!valid.ok()) return done(valid, 0);
  const bool reaches = ReachesDevice(call);
  if (call.group != 0) {
    if (!reaches) return executor_->Start(call, done);
    return done(Status(StatusCode::kUnimplemented,
                       StrCat(Name(call.kind), " in group ", call.group,
                              " on a device's memory: only the group of all "
                              "ranks takes that; copy it to the host")),
                0);
  }
  if (reaches) {
    const Status fenced =
        device_side_->sync().Fence(device_side_->stream(call.channel));
    if (!fenced.ok()) {
      // The others wait for this call.
      transport_.fabric->Fail(fenced);
      return done(fenced, 0);
    }
  }
  // What is staged takes its turn among the calls on host memory.
  if (!device_side_->by_nccl() || reaches || GoesToDeviceEmpty(call)) {
    return device_side_->collective().Start(call, done);
  }
  executor_->Start(call, done);
}

Result<std::uint64_t> SessionImpl::Start(const CollectiveCall& call) {
  // What is wrong with the call is for Wait() to say.
  return StartPending(0, {}, [&](const CallGroup&, Pending* pending) {
    StartCall(call, pending);
    return Status();
  });
}

Status SessionImpl::CheckTicket(std::uint64_t ticket) const {
  if (ticket > 0 && ticket < next_ticket_) return Status();
  return Status(
      StatusCode::kInvalidArgument,
      StrCat("ticket ", ticket, " is unknown: ",
             next_ticket_ == 1
                 ? std::string("none has been given out")
                 : StrCat("those given out are 1 to ", next_ticket_ - 1)));
}

Status SessionImpl::Wait(std::uint64_t ticket) {
  Status status;
  progress_->Drive([&] {
    status = CheckTicket(ticket);
    if (!status.ok()) return true;
    const auto found = tickets_.find(ticket);
    if (found == tickets_.end() || found->second->completion) {
      status = Status(
          StatusCode::kInvalidArgument,
          StrCat("ticket ", ticket,
                 " was waited for already, or is that of a call that reports "
                 "its end itself"));
      return true;
    }
    if (!found->second->done) return false;
    status = found->second->status;
    tickets_.erase(found);
    return true;
  });
  return status;
}

Status SessionImpl::Run(const CollectiveCall& call) {
  Pending pending;
  bool started = false;
  progress_->Drive([&] {
    if (!started) {
      StartCall(call, &pending);
      started = true;
    }
    return pending.done;
  });
  return pending.status;
}

Result<BufferView> SessionImpl::AllocateShared(std::size_t bytes) {
  Result<BufferView> view = Status(StatusCode::kInternal, "not run");
  progress_->Do([&] {
    Result<PoolMemory> memory =
        PoolMemory::Allocate(transport_.arena, std::max<std::size_t>(bytes, 1));
    if (!memory.ok()) {
      view = memory.status();
      return;
    }
    view = memory.value().view();
    shared_[view.value().data] = std::move(memory).value();
  });
  return view;
}

void SessionImpl::FreeShared(BufferView view) {
  progress_->Do([&] { shared_.erase(view.data); });
}

}  // namespace gradientflow
