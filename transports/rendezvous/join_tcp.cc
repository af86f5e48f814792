#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "transports/rendezvous/frames.h"
#include "transports/rendezvous/watch.h"
#include "transports/rendezvous/ways.h"
#include "transports/tcp/addresses.h"
#include "transports/tcp/socket.h"

namespace gradientflow::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kLongestWait(100);
constexpr milliseconds kFirstBackoff(10);
constexpr milliseconds kLastBackoff(500);
// How long to wait for an address that does not answer before trying the next.
constexpr seconds kConnectPatience(3);

// The longest body before the introduction: a refusal.
constexpr std::size_t kMostAnswerBytes = std::size_t{64} << 10;

class Joiner {
 public:
  explicit Joiner(const Call& call) : call_(call) {}
  Result<std::string> Run();

 private:
  using Answer = std::optional<Result<std::string>>;

  // One attempt at one address. An empty answer means: try again.
  Answer Try(const SocketAddress& server);
  bool WaitForConnection(const Socket& socket, const SocketAddress& server);
  Answer Talk(FrameStream& stream);
  Answer OnChallenge(FrameStream& stream, const Bits256& challenge);
  Answer OnIntroduction(FrameStream& stream, std::string_view body);
  Answer OnFrame(FrameStream& stream, const Frame& frame);
  Status Unexpected(FrameType type) const;
  // Blocks until `fd` is ready, but for no more than a moment.
  void Wait(int fd, short events, Clock::Time until) const;
  // The size that it would have with all cards in it.
  std::size_t MostIntroductionBytes() const {
    return 4 +
           static_cast<std::size_t>(call_.options.size) * (kMaxCardBytes + 4);
  }
  std::string Who() const {
    return StrCat("rendezvous: rank ", call_.options.rank, ": ");
  }

  const Call& call_;
  Join join_;
  std::optional<Bits256> welcome_;  // The proof that rank 0 owes this rank.
  bool joined_ = false;
  std::uint32_t round_ = 0;  // Of the introduction; 0 before the first.
  std::string introduction_;
  std::string trouble_ = "not tried";
};

void Joiner::Wait(int fd, short events, Clock::Time until) const {
  const Clock::Time now = call_.clock.Now();
  const auto patience =
      std::min<Clock::Time>(std::max(until, now) - now, kLongestWait);
  pollfd ready = {fd, events, 0};
  ::poll(&ready, fd < 0 ? 0 : 1,
         static_cast<int>(std::chrono::ceil<milliseconds>(patience).count()));
}

bool Joiner::WaitForConnection(const Socket& socket,
                               const SocketAddress& server) {
  const Clock::Time until = std::min<Clock::Time>(
      call_.options.deadline, call_.clock.Now() + kConnectPatience);
  pollfd ready = {socket.fd(), POLLOUT, 0};
  while (::poll(&ready, 1, 0) != 1) {
    if (call_.clock.Now() >= until) {
      trouble_ = server.ToString() + ": no answer";
      return false;
    }
    Wait(socket.fd(), POLLOUT, until);
  }
  const int error = ConnectError(socket);
  if (error != 0) trouble_ = StrCat(server.ToString(), ": ", ErrorText(error));
  return error == 0;
}

// The card follows the join at once, which saves a round trip.
Joiner::Answer Joiner::OnChallenge(FrameStream& stream,
                                   const Bits256& challenge) {
  const Result<Bits256> nonce = RandomBits();
  if (!nonce.ok()) return nonce.status();
  const Bits256& secret = call_.options.secret;
  join_.rank = static_cast<std::uint32_t>(call_.options.rank);
  join_.size = static_cast<std::uint32_t>(call_.options.size);
  join_.nonce = nonce.value();
  join_.proof = ProofOf(FrameType::kJoin, secret, challenge, join_);
  welcome_ = ProofOf(FrameType::kWelcome, secret, challenge, join_);
  stream.Queue(MakeFrame(FrameType::kJoin, EncodeJoin(join_)));
  stream.Queue(MakeFrame(FrameType::kCard, call_.my_card));
  return std::nullopt;
}

Joiner::Answer Joiner::OnIntroduction(FrameStream& stream,
                                      std::string_view body) {
  BodyReader reader(body);
  round_ = reader.Number();
  if (!reader.ok() || round_ == 0) return Unexpected(FrameType::kIntroduction);
  introduction_ = body.substr(sizeof(round_));
  std::string round;
  PutNumber(round_, &round);
  stream.Queue(MakeFrame(FrameType::kAck, round));
  return std::nullopt;
}

// Only a rank 0 that has proven itself is believed, except when it refuses.
Joiner::Answer Joiner::OnFrame(FrameStream& stream, const Frame& frame) {
  BodyReader reader(frame.body);
  switch (frame.type) {
    case FrameType::kChallenge: {
      const Bits256 challenge = reader.Bits();
      if (welcome_ || !reader.Complete()) break;
      return OnChallenge(stream, challenge);
    }
    case FrameType::kWelcome: {
      const Bits256 proof = reader.Bits();
      if (joined_ || !welcome_ || !reader.Complete()) break;
      if (!EqualBits(proof, *welcome_)) {
        return Status(StatusCode::kFailedPrecondition,
                      StrCat(Who(), "the process at ", call_.options.address,
                             " is not rank 0 of this job: its job token "
                             "differs"));
      }
      joined_ = true;
      stream.AllowBodies(MostIntroductionBytes());
      return std::nullopt;
    }
    case FrameType::kIntroduction:
      if (!joined_) break;
      return OnIntroduction(stream, frame.body);
    case FrameType::kGo:
      if (round_ == 0 || reader.Number() != round_) break;
      return std::move(introduction_);
    case FrameType::kRefused:
      return DecodeStatus(frame.body);
    case FrameType::kFailed:
      if (!joined_) break;
      return DecodeStatus(frame.body);
    case FrameType::kJoin:
    case FrameType::kAck:
    case FrameType::kCard:
    case FrameType::kLinked:
      break;
  }
  return Unexpected(frame.type);
}

Status Joiner::Unexpected(FrameType type) const {
  return Status(StatusCode::kDataLoss,
                StrCat(Who(), "rank 0 at ", call_.options.address,
                       " sent a frame of type ", static_cast<int>(type),
                       " that was not expected now"));
}

// Before kWelcome a closed connection means: try again. Afterwards it means
// that rank 0 has gone.
Joiner::Answer Joiner::Talk(FrameStream& stream) {
  const Clock::Time connected = call_.clock.Now();
  welcome_.reset();
  for (;;) {
    const Clock::Time until =
        joined_ ? call_.options.deadline + kGrace
                : std::min<Clock::Time>(call_.options.deadline,
                                        connected + kAnswerPatience);
    if (!stream.Flush()) {
      // The last message of rank 0 may still be there to be read below.
      trouble_ = stream.trouble();
    }
    Frame frame;
    switch (stream.Read(&frame)) {
      case FrameStream::State::kFrame: {
        Answer answer = OnFrame(stream, frame);
        if (answer) return answer;
        continue;
      }
      case FrameStream::State::kGarbage:
        return Status(StatusCode::kDataLoss,
                      StrCat(Who(), "the process at ", call_.options.address,
                             " is not rank 0: ", stream.trouble()));
      case FrameStream::State::kClosed:
        if (joined_) {
          return Status(StatusCode::kUnavailable,
                        StrCat(Who(), "rank 0 at ", call_.options.address,
                               " has gone: ", stream.trouble()));
        }
        trouble_ = stream.trouble();
        return std::nullopt;
      case FrameStream::State::kWaiting:
        break;
    }
    if (call_.clock.Now() >= until) {
      trouble_ = "connected, but no answer";
      return std::nullopt;
    }
    Wait(stream.fd(),
         static_cast<short>(POLLIN | (stream.flushed() ? 0 : POLLOUT)), until);
  }
}

Joiner::Answer Joiner::Try(const SocketAddress& server) {
  Result<Socket> socket = StartConnect(server, 0);
  if (!socket.ok()) {
    if (socket.status().code() == StatusCode::kResourceExhausted) {
      return socket.status();
    }
    trouble_ = socket.status().message();
    return std::nullopt;
  }
  if (!WaitForConnection(socket.value(), server)) return std::nullopt;
  if (LocalAddress(socket.value()).ToString() == server.ToString()) {
    // While no one listens, TCP may connect a port of this host to itself.
    trouble_ = server.ToString() + ": nobody listens";
    return std::nullopt;
  }
  if (const Status ready = PrepareConnection(socket.value()); !ready.ok()) {
    trouble_ = ready.message();
    return std::nullopt;
  }
  FrameStream stream(std::move(socket).value(), kMostAnswerBytes);
  Answer answer = Talk(stream);
  if (answer && answer->ok() && call_.options.watch != nullptr) {
    std::vector<Watched> zero;
    zero.push_back({0, call_.options.address, std::move(stream)});
    *call_.options.watch = MakeWatch(std::move(zero), Status());
  }
  return answer;
}

// Tries all addresses of rank 0 again and again, with growing pauses: rank 0
// may start later than this rank.
Result<std::string> Joiner::Run() {
  const Result<HostPort> where = ParseHostPort(call_.options.address);
  if (!where.ok()) return where.status();
  milliseconds backoff = kFirstBackoff;
  while (call_.clock.Now() < call_.options.deadline) {
    const Result<std::vector<SocketAddress>> servers = Resolve(where.value());
    // The name may not be known until rank 0's host is up.
    if (!servers.ok()) trouble_ = servers.status().message();
    for (std::size_t i = 0; servers.ok() && i < servers.value().size(); ++i) {
      Answer answer = Try(servers.value()[i]);
      if (answer) return *std::move(answer);
    }
    Wait(-1, 0, call_.clock.Now() + backoff);
    backoff = std::min(backoff * 2, kLastBackoff);
  }
  return Status(StatusCode::kDeadlineExceeded,
                StrCat(Who(),
                       joined_ ? "joined, but had no word from rank 0 at "
                               : "cannot reach rank 0 at ",
                       call_.options.address, " in time: ", trouble_));
}

}  // namespace

Result<std::string> JoinTcp(const Call& call) { return Joiner(call).Run(); }

}  // namespace gradientflow::rendezvous
