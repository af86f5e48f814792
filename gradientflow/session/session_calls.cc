#include "gradientflow/base/str_cat.h"
#include "gradientflow/session/session_impl.h"

// Collectives and messages on plain buffers, and memory for them.
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
}

Collective& SessionImpl::GradientCollective() const {
  if (device_side_ != nullptr) return device_side_->collective();
  return *executor_;
}

// Whether some of the call's elements are in the device's memory.
bool SessionImpl::ReachesDevice(const CollectiveCall& call) const {
  const CallBuffers buffers = BuffersOf(call, transport_.group);
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
  const Status valid = ValidateCall(call, transport_.group);
  if (!valid.ok()) return done(valid, 0);
  const bool reaches = ReachesDevice(call);
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
  std::uint64_t ticket = 0;
  progress_->Do([&] {
    ticket = next_ticket_++;
    auto& pending = tickets_[ticket];
    pending = std::make_unique<Pending>();
    StartCall(call, pending.get());
  });
  progress_->Notify();
  return ticket;
}

Status SessionImpl::Wait(std::uint64_t ticket) {
  Status status;
  progress_->Drive([&] {
    const auto found = tickets_.find(ticket);
    if (found == tickets_.end()) {
      status = Status(
          StatusCode::kInvalidArgument,
          StrCat("ticket ", ticket, " is unknown, or was waited for already"));
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

Result<Tag> SessionImpl::NextTag(
    std::map<std::pair<int, std::uint32_t>, std::uint32_t>* counts, int peer,
    std::uint32_t tag) {
  if (peer < 0 || peer >= options_.size || peer == options_.rank) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("peer ", peer, ": expected another rank, 0 to ",
                         options_.size - 1, ", not ", options_.rank));
  }
  const std::uint32_t count = (*counts)[{peer, tag}]++;
  return kPointToPointBit | Tag{tag} << 31 | (count & 0x7FFFFFFF);
}

Status SessionImpl::Send(int peer, std::uint32_t tag, const void* data,
                         std::size_t bytes) {
  Pending pending;
  bool started = false;
  progress_->Drive([&] {
    if (!started) {
      started = true;
      Result<Tag> wire_tag = NextTag(&sends_, peer, tag);
      if (!wire_tag.ok()) {
        pending.status = wire_tag.status();
        return true;
      }
      transport_.fabric->Send(peer, wire_tag.value(),
                              {static_cast<const std::byte*>(data), bytes, {}},
                              0, {&SessionImpl::OnDone, &pending, 0});
      engine_->EnterWait();
    }
    if (pending.done) engine_->LeaveWait();
    return pending.done;
  });
  return pending.status;
}

Status SessionImpl::Recv(int peer, std::uint32_t tag, void* data,
                         std::size_t bytes) {
  Pending pending;
  bool started = false;
  progress_->Drive([&] {
    if (!started) {
      started = true;
      Result<Tag> wire_tag = NextTag(&receives_, peer, tag);
      if (!wire_tag.ok()) {
        pending.status = wire_tag.status();
        return true;
      }
      transport_.fabric->Recv(peer, wire_tag.value(),
                              {static_cast<std::byte*>(data), bytes, {}}, 0,
                              {&SessionImpl::OnDone, &pending, 0});
      engine_->EnterWait();
    }
    if (pending.done) engine_->LeaveWait();
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
