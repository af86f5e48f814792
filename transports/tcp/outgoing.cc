#include "transports/tcp/outgoing.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

using std::chrono::milliseconds;

// The next address is tried this much later, because most often the first one
// is right.
constexpr milliseconds kStagger(200);
constexpr milliseconds kFirstBackoff(20);
constexpr milliseconds kLastBackoff(500);

}  // namespace

OutgoingLane::OutgoingLane(const LaneHello& hello,
                           const std::vector<SocketAddress>& candidates,
                           std::size_t buffer_bytes, Clock::Time now)
    : hello_(hello), buffer_bytes_(buffer_bytes) {
  for (const SocketAddress& candidate : candidates) {
    Attempt attempt;
    attempt.to = candidate;
    attempt.start_at = now + kStagger * attempts_.size();
    attempt.backoff = kFirstBackoff;
    attempts_.push_back(std::move(attempt));
  }
}

Socket OutgoingLane::TakeSocket() { return std::move(*kept_); }

Status OutgoingLane::Start(Clock::Time now) {
  for (Attempt& attempt : attempts_) {
    if (connected() || attempt.socket.valid() || attempt.start_at > now) {
      continue;
    }
    Result<Socket> started = StartConnect(attempt.to, buffer_bytes_);
    if (started.ok()) {
      attempt.socket = std::move(started).value();
      attempt.greeted = false;
      attempt.reader = HelloReader();
    } else if (started.status().code() == StatusCode::kResourceExhausted) {
      return started.status();
    } else {
      Abandon(attempt, started.status().message(), now);
    }
  }
  return Status();
}

// Attempts that are under way wait for events, not for a time.
std::optional<Clock::Time> OutgoingLane::due() const {
  std::optional<Clock::Time> first;
  for (const Attempt& attempt : attempts_) {
    if (connected() || attempt.socket.valid()) continue;
    first = std::min(first.value_or(attempt.start_at), attempt.start_at);
  }
  return first;
}

void OutgoingLane::AddInterests(std::vector<Interest>* interests) const {
  for (std::size_t i = 0; i < attempts_.size() && !connected(); ++i) {
    const Attempt& attempt = attempts_[i];
    if (!attempt.socket.valid()) continue;
    interests->push_back(
        {attempt.socket.fd(),
         static_cast<short>(attempt.greeted ? POLLIN : POLLOUT), i});
  }
}

void OutgoingLane::Abandon(Attempt& attempt, const std::string& why,
                           Clock::Time now) {
  trouble_ = why;
  attempt.socket.Close();
  attempt.start_at = now + attempt.backoff;
  attempt.backoff =
      std::min<Clock::Time>(attempt.backoff * 2, Clock::Time(kLastBackoff));
}

Status OutgoingLane::OnReady(std::size_t index, Clock::Time now) {
  Attempt& attempt = attempts_[index];
  // Another attempt may have won since poll() returned.
  if (connected() || !attempt.socket.valid()) return Status();
  const std::string where = attempt.to.ToString() + ": ";
  if (!attempt.greeted) {
    const int error = ConnectError(attempt.socket);
    Status greeted =
        error == 0 ? PrepareConnection(attempt.socket)
                   : SocketError(StatusCode::kUnavailable, "connect", error);
    if (greeted.ok()) greeted = WriteHello(attempt.socket, hello_);
    if (!greeted.ok()) {
      Abandon(attempt, where + greeted.message(), now);
      return Status();
    }
    attempt.greeted = true;
    return Status();
  }
  switch (attempt.reader.Read(attempt.socket)) {
    case HelloReader::State::kWaiting:
      return Status();
    case HelloReader::State::kClosed:
      Abandon(attempt,
              StrCat(where, "closed instead of a welcome (",
                     attempt.reader.error() == 0
                         ? "another job's rank, or a stranger"
                         : ErrorText(attempt.reader.error()),
                     ")"),
              now);
      return Status();
    case HelloReader::State::kComplete:
      break;
  }
  return OnWelcome(attempt, now);
}

// The first address that answers with a proper welcome wins. The others are
// closed without kConfirm, so the peer drops them.
Status OutgoingLane::OnWelcome(Attempt& attempt, Clock::Time now) {
  const std::string where = attempt.to.ToString();
  const Result<LaneHello> read = attempt.reader.Take();
  if (!read.ok()) {
    Abandon(attempt, StrCat(where, ": ", read.status().message()), now);
    return Status();
  }
  const LaneHello& welcome = read.value();
  if (!SameKey(welcome.session_key, hello_.session_key) ||
      welcome.step != LaneHello::Step::kWelcome || welcome.from != hello_.to ||
      welcome.to != hello_.from) {
    Abandon(attempt,
            StrCat(where, ": expected rank ", hello_.to,
                   " of this job, seen another process"),
            now);
    return Status();
  }
  if (welcome.lanes != hello_.lanes) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("rank ", hello_.to, " (", where, ") has ", welcome.lanes,
               " connections per peer, rank ", hello_.from, " has ",
               hello_.lanes, ": expected the same number on all ranks"));
  }
  LaneHello confirm = hello_;
  confirm.step = LaneHello::Step::kConfirm;
  const Status confirmed = WriteHello(attempt.socket, confirm);
  if (!confirmed.ok()) {
    Abandon(attempt, StrCat(where, ": ", confirmed.message()), now);
    return Status();
  }
  kept_ = std::move(attempt.socket);
  for (Attempt& other : attempts_) other.socket.Close();
  return Status();
}

}  // namespace gradientflow
