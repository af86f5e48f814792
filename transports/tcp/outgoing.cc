#include "transports/tcp/outgoing.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

using std::chrono::milliseconds;

// The next address is tried this much later, because most often the first one
// is right, or as soon as that one has failed.
constexpr milliseconds kStagger(200);
constexpr milliseconds kFirstBackoff(20);
constexpr milliseconds kLastBackoff(125);

}  // namespace

OutgoingLane::OutgoingLane(const Args& args,
                           const std::vector<SocketAddress>& candidates,
                           Clock::Time now)
    : args_(args) {
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
    int error = 0;
    Result<Socket> started =
        StartConnect(attempt.to, args_.buffer_bytes, &error);
    if (started.ok()) {
      attempt.socket = std::move(started).value();
      attempt.greeted = false;
      attempt.reader = HelloReader();
    } else if (started.status().code() == StatusCode::kResourceExhausted) {
      return started.status();
    } else {
      NoteRefusal(attempt, error, now);
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
  if (std::exchange(attempt.failed, true)) return;
  const auto next = std::find_if(attempts_.begin(), attempts_.end(),
                                 [now](const Attempt& other) {
                                   return !other.failed && other.start_at > now;
                                 });
  if (next != attempts_.end()) next->start_at = now;
}

void OutgoingLane::NoteRefusal(Attempt& attempt, int error, Clock::Time now) {
  if (error != ECONNREFUSED) {
    attempt.refused_since.reset();
    return;
  }
  if (!attempt.refused_since) attempt.refused_since = now;
  attempt.refused_at = now;
  attempt.on_the_way =
      attempt.socket.valid() && WasRefusedOnTheWay(attempt.socket);
}

std::optional<PeerRefusal> OutgoingLane::refusal() const {
  if (connected() || attempts_.empty()) return std::nullopt;
  PeerRefusal refusal;
  refusal.peer = peer();
  refusal.until = Clock::Time::max();
  for (const Attempt& attempt : attempts_) {
    if (!attempt.refused_since) return std::nullopt;
    refusal.since = std::max(refusal.since, *attempt.refused_since);
    refusal.until = std::min(refusal.until, attempt.refused_at);
    refusal.on_the_way |= attempt.on_the_way;
  }
  refusal.certain = args_.reachable || reached_;
  refusal.trouble = Trouble();
  return refusal;
}

// An error says more than the silence of another address.
std::string OutgoingLane::Trouble() const {
  if (!trouble_.empty()) return trouble_;
  const auto silent =
      std::find_if(attempts_.begin(), attempts_.end(),
                   [](const Attempt& a) { return a.socket.valid(); });
  if (silent == attempts_.end()) return "";
  return silent->to.ToString() +
         (silent->greeted ? ": no welcome" : ": no answer");
}

Status OutgoingLane::Greet(Attempt& attempt, Clock::Time now) {
  const int error = ConnectError(attempt.socket);
  NoteRefusal(attempt, error, now);
  reached_ |= error == 0;
  if (error != 0) {
    return SocketError(StatusCode::kUnavailable, "connect", error);
  }
  GF_RETURN_IF_ERROR(PrepareConnection(attempt.socket));
  const Result<Bits256> nonce = RandomBits();
  if (!nonce.ok()) return nonce.status();
  LaneHello hello = args_.hello;
  hello.nonce = attempt.nonce = nonce.value();
  return WriteHello(attempt.socket, hello);
}

Status OutgoingLane::OnReady(std::size_t index, Clock::Time now) {
  Attempt& attempt = attempts_[index];
  // Another attempt may have won since poll() returned.
  if (connected() || !attempt.socket.valid()) return Status();
  const std::string where = attempt.to.ToString() + ": ";
  if (!attempt.greeted) {
    const Status greeted = Greet(attempt, now);
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
  const LaneHello& mine = args_.hello;
  const LaneHello& welcome = read.value();
  if (welcome.kind != LaneHello::Kind::kWelcome || welcome.from != mine.to ||
      welcome.to != mine.from || welcome.lane != mine.lane ||
      !IsProven(welcome, args_.secret, attempt.nonce)) {
    Abandon(attempt,
            StrCat(where, ": expected rank ", mine.to,
                   " of this job, seen another process"),
            now);
    return Status();
  }
  LaneHello confirm = mine;
  confirm.kind = LaneHello::Kind::kConfirm;
  confirm.nonce = attempt.nonce;
  confirm.proof = ProofOf(confirm, args_.secret, welcome.nonce);
  const Status confirmed = WriteHello(attempt.socket, confirm);
  if (!confirmed.ok()) {
    Abandon(attempt, StrCat(where, ": ", confirmed.message()), now);
    return Status();
  }
  // The peer, too, sees it in the confirmation.
  if (welcome.lanes != mine.lanes) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("rank ", mine.to, " (", where, ") has ", welcome.lanes,
               " connections per peer, rank ", mine.from, " has ", mine.lanes,
               ": expected the same number on all ranks"));
  }
  kept_ = std::move(attempt.socket);
  kept_nonce_ = attempt.nonce;
  for (Attempt& other : attempts_) other.socket.Close();
  return Status();
}

}  // namespace gradientflow
