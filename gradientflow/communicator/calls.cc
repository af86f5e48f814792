#include "gradientflow/communicator/calls.h"

#include <cmath>
#include <functional>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/call_plan.h"

namespace gradientflow {
namespace {

// The error of calls that come while the communicator closes.
Status Closing() {
  return {StatusCode::kAborted, "the communicator is being closed"};
}

// A ticket says whether its call has a completion. So a ticket whose call has
// ended and is forgotten can be told from one that was waited for.
std::uint64_t TicketOf(std::uint64_t number, bool has_completion) {
  return number << 1 | (has_completion ? 1 : 0);
}
std::uint64_t NumberOf(std::uint64_t ticket) { return ticket >> 1; }
bool HasCompletion(std::uint64_t ticket) { return (ticket & 1) != 0; }

}  // namespace

// Runs on the driving thread, with the baton held. A completion of the user
// must not, so it is handed to Completions.
void Calls::OnDone(void* pending, std::uint64_t, std::uint32_t,
                   const Status& status) {
  auto& waited = *static_cast<Pending*>(pending);
  waited.done = true;
  waited.status = status;
  if (!waited.completion) return;
  Calls& calls = *waited.calls;
  calls.args_.completions->Add(
      {[&waited] { waited.completion(waited.status); },
       [&calls, &waited] { calls.pending_.erase(waited.ticket); }});
}

const CallGroup* Calls::Find(GroupId group, Status* why) const {
  const CallGroup* found = args_.executor->FindGroup(group);
  if (found == nullptr) {
    *why = Status(StatusCode::kInvalidArgument,
                  StrCat("group ", group, " is not open"));
  }
  return found;
}

Result<std::uint64_t> Calls::Start(GroupId group, Completion completion,
                                   const Begin& begin) {
  std::uint64_t ticket = 0;
  Status status;
  args_.progress->Do([&] {
    if (closing_) {  // A completion may start more calls.
      status = Closing();
      return;
    }
    const CallGroup* of = Find(group, &status);
    if (of == nullptr) return;
    ticket = TicketOf(started_ + 1, static_cast<bool>(completion));
    auto& pending = pending_[ticket];
    pending = std::make_unique<Pending>();
    pending->ticket = ticket;
    pending->completion = std::move(completion);
    pending->calls = this;
    status = begin(*of, {&Calls::OnDone, pending.get(), 0});
    if (status.ok()) {
      ++started_;
    } else {
      pending_.erase(ticket);
    }
  });
  if (!status.ok()) return status;
  args_.progress->Notify();
  return ticket;
}

Result<std::uint64_t> Calls::StartCollective(const CollectiveCall& call,
                                             Completion completion) {
  return Start(call.group, std::move(completion),
               [&](const CallGroup& group, Done done) {
                 GF_RETURN_IF_ERROR(ValidateCall(call, group));
                 return args_.start(call, done);
               });
}

Result<std::uint64_t> Calls::StartSend(GroupId group, int peer,
                                       std::uint32_t tag, ConstBufferView data,
                                       Completion completion) {
  return Start(group, std::move(completion),
               [&](const CallGroup& of, Done done) {
                 return args_.messages->Send(of, peer, tag, data, done);
               });
}

Result<std::uint64_t> Calls::StartRecv(GroupId group, int peer,
                                       std::uint32_t tag, BufferView data,
                                       int* source, Completion completion) {
  return Start(group, std::move(completion),
               [&](const CallGroup& of, Done done) {
                 return args_.messages->Recv(of, peer, tag, data, source, done);
               });
}

// A ticket that is not pending was never given out, was waited for, or belongs
// to a call whose completion has returned.
bool Calls::IsOver(std::uint64_t ticket, Status* status) {
  const auto found = pending_.find(ticket);
  if (found != pending_.end()) {
    // A call with a completion is over when the completion has returned.
    if (!found->second->done || found->second->completion) return false;
    *status = found->second->status;
    pending_.erase(found);
    return true;
  }
  if (NumberOf(ticket) == 0 || NumberOf(ticket) > started_) {
    *status = Status(
        StatusCode::kInvalidArgument,
        StrCat("ticket ", ticket, " is unknown: none such was given out"));
  } else if (!HasCompletion(ticket)) {
    *status = Status(StatusCode::kInvalidArgument,
                     StrCat("ticket ", ticket, " was waited for already"));
  }
  return true;
}

Status Calls::Wait(std::uint64_t ticket, double seconds) {
  if (std::isnan(seconds)) {
    return {StatusCode::kInvalidArgument,
            "seconds to wait: expected a number, seen NaN"};
  }
  constexpr double kNoLimit = 1e9;
  const Clock::Time deadline = seconds < 0 || seconds > kNoLimit
                                   ? Clock::Time::max()
                                   : args_.clock->Now() + FromSeconds(seconds);
  Status status;
  const bool over = args_.progress->DriveUntil(
      [&] { return IsOver(ticket, &status); }, deadline);
  if (over) return status;
  return Status(StatusCode::kDeadlineExceeded,
                StrCat("still under way after ", seconds, " s"));
}

// The call lives on the stack of the thread that waits for it. Nothing is
// allocated, since std::function holds a reference without doing so, and no
// other thread hears of the call.
template <typename B>
Status Calls::RunHere(GroupId id, const B& begin) {
  Pending pending;
  Status refused;
  bool started = false;
  const auto run = [&] {
    if (!std::exchange(started, true)) {
      const CallGroup* group = Find(id, &refused);
      if (closing_) refused = Closing();
      if (refused.ok()) {
        refused = begin(*group, Done{&Calls::OnDone, &pending, 0});
      }
    }
    return !refused.ok() || pending.done;
  };
  args_.progress->Drive(std::ref(run));
  return refused.ok() ? pending.status : refused;
}

Status Calls::Run(const CollectiveCall& call) {
  return RunHere(call.group, [&](const CallGroup& group, Done done) {
    GF_RETURN_IF_ERROR(ValidateCall(call, group));
    return args_.start(call, done);
  });
}

Status Calls::Send(GroupId group, int peer, std::uint32_t tag,
                   ConstBufferView data) {
  return RunHere(group, [&](const CallGroup& of, Done done) {
    return args_.messages->Send(of, peer, tag, data, done);
  });
}

Status Calls::Recv(GroupId group, int peer, std::uint32_t tag,
                   BufferView data) {
  return RunHere(group, [&](const CallGroup& of, Done done) {
    return args_.messages->Recv(of, peer, tag, data, nullptr, done);
  });
}

Status Calls::OpenGroup(GroupId id, const std::vector<int>& ranks) {
  Status status;
  args_.progress->Do([&] {
    status = closing_ ? Closing() : args_.executor->OpenGroup(id, ranks);
  });
  return status;
}

// Other ranks may wait for the calls that are in flight, so closing the group
// under them is an error that ends the job.
Status Calls::CloseGroup(GroupId id) {
  Status status;
  args_.progress->Do([&] {
    if (closing_) {
      status = Closing();
      return;
    }
    status = args_.executor->CloseGroup(id);
    if (status.ok()) {
      args_.messages->Forget(id);
    } else if (status.code() == StatusCode::kFailedPrecondition) {
      args_.fabric->Fail(status);
    }
  });
  args_.progress->Notify();
  return status;
}

Status Calls::Check() const {
  Status status;
  args_.progress->Do(
      [&] { status = closing_ ? Closing() : args_.fabric->status(); });
  return status;
}

void Calls::Close() {
  args_.progress->Do([this] { closing_ = true; });
}

}  // namespace gradientflow
