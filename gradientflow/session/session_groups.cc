#include <cmath>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/session/session_impl.h"

// Groups of ranks, messages between two, and calls that call back.
namespace gradientflow {
namespace {

// What completions hear that ask for more while a session ends.
Status Closing() {
  return {StatusCode::kAborted, "the session is being closed"};
}

}  // namespace

Status SessionImpl::OpenGroup(GroupId id, const std::vector<int>& ranks) {
  Status status;
  progress_->Do(
      [&] { status = closing_ ? Closing() : executor_->OpenGroup(id, ranks); });
  return status;
}

Status SessionImpl::CloseGroup(GroupId id) {
  Status status;
  progress_->Do([&] {
    if (closing_) {
      status = Closing();
      return;
    }
    status = executor_->CloseGroup(id);
    if (status.ok()) {
      messages_->Forget(id);
    } else if (status.code() == StatusCode::kFailedPrecondition) {
      transport_.fabric->Fail(status);
      engine_->Poll();
    }
  });
  return status;
}

Status SessionImpl::Check() const {
  Status status;
  progress_->Do(
      [&] { status = closing_ ? Closing() : transport_.fabric->status(); });
  return status;
}

Result<std::uint64_t> SessionImpl::StartPending(
    GroupId group, Completion completion,
    const std::function<Status(const CallGroup&, Pending*)>& start) {
  std::uint64_t ticket = 0;
  Status status;
  progress_->Do([&] {
    // A completion may ask for more.
    if (closing_) {
      status = Closing();
      return;
    }
    const CallGroup* of = executor_->FindGroup(group);
    if (of == nullptr) {
      status = Status(StatusCode::kInvalidArgument,
                      StrCat("group ", group, " is not open"));
      return;
    }
    ticket = next_ticket_;
    auto& pending = tickets_[ticket];
    pending = std::make_unique<Pending>();
    pending->ticket = ticket;
    pending->completion = std::move(completion);
    pending->session = this;
    status = start(*of, pending.get());
    if (!status.ok()) {
      tickets_.erase(ticket);
      return;
    }
    ++next_ticket_;
  });
  if (!status.ok()) return status;
  progress_->Notify();
  return ticket;
}

Result<std::uint64_t> SessionImpl::StartThen(const CollectiveCall& call,
                                             Completion completion) {
  return StartPending(call.group, std::move(completion),
                      [&](const CallGroup& group, Pending* pending) {
                        const Status valid = ValidateCall(call, group);
                        if (valid.ok()) StartCall(call, pending);
                        return valid;
                      });
}

Result<std::uint64_t> SessionImpl::StartSend(const Message& message,
                                             const void* data,
                                             std::size_t bytes,
                                             Completion completion) {
  return StartPending(message.group, std::move(completion),
                      [&](const CallGroup& group, Pending* pending) {
                        return messages_->Send(
                            group, message.peer, message.tag,
                            {static_cast<const std::byte*>(data), bytes, {}},
                            {&SessionImpl::OnDone, pending, 0});
                      });
}

Result<std::uint64_t> SessionImpl::StartRecv(const Message& message, void* data,
                                             std::size_t bytes,
                                             Completion completion) {
  return StartPending(message.group, std::move(completion),
                      [&](const CallGroup& group, Pending* pending) {
                        return messages_->Recv(
                            group, message.peer, message.tag,
                            {static_cast<std::byte*>(data), bytes, {}},
                            message.source, {&SessionImpl::OnDone, pending, 0});
                      });
}

Status SessionImpl::Await(std::uint64_t ticket, double seconds) {
  if (std::isnan(seconds)) {
    return {StatusCode::kInvalidArgument,
            "seconds to wait: expected a number, seen NaN"};
  }
  constexpr double kForEver = 1e9;
  const Clock::Time deadline = seconds < 0 || seconds > kForEver
                                   ? Clock::Time::max()
                                   : clock_->Now() + FromSeconds(seconds);
  Status status;
  const bool over = progress_->DriveUntil(
      [&] {
        status = CheckTicket(ticket);
        if (!status.ok()) return true;
        const auto found = tickets_.find(ticket);
        if (found == tickets_.end()) return true;
        // One with a completion is over once that has returned.
        return found->second->done && !found->second->completion;
      },
      deadline);
  if (over) return status;
  return Status(StatusCode::kDeadlineExceeded,
                StrCat("still under way after ", seconds, " s"));
}

Status SessionImpl::Send(int peer, std::uint32_t tag, const void* data,
                         std::size_t bytes) {
  Result<std::uint64_t> ticket = StartSend({0, peer, tag}, data, bytes, {});
  return ticket.ok() ? Wait(ticket.value()) : ticket.status();
}

Status SessionImpl::Recv(int peer, std::uint32_t tag, void* data,
                         std::size_t bytes) {
  Result<std::uint64_t> ticket = StartRecv({0, peer, tag}, data, bytes, {});
  return ticket.ok() ? Wait(ticket.value()) : ticket.status();
}

}  // namespace gradientflow
