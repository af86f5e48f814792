// What those say whom a rank meets, before and after they have proven
// themselves: a rank 0 and a member at the rendezvous, a peer that this rank
// dials, a process at the local socket, and the introduction. Who knows no
// secret gets nowhere; nobody breaks anything.

#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/fd.h"
#include "gradientflow/base/secret.h"
#include "gradientflow/communicator/card.h"
#include "gradientflow/communicator/introduction.h"
#include "tests/transports/fuzz_hello.h"
#include "tests/transports/fuzz_input.h"
#include "transports/rendezvous/frames.h"
#include "transports/rendezvous/rendezvous.h"
#include "transports/shm/hello.h"
#include "transports/tcp/hello.h"
#include "transports/tcp/outgoing.h"
#include "transports/tcp/socket.h"

namespace gradientflow {
namespace {

using fuzz::BitsOf;
using fuzz::Choices;
using fuzz::HelloOf;
using fuzz::Require;
using rendezvous::Frame;
using rendezvous::FrameStream;
using rendezvous::FrameType;

const Bits256& Secret() {
  static const Bits256 secret = RandomBits().value();
  return secret;
}

Socket ListenHere() {
  return ListenOn(*SocketAddress::Parse("127.0.0.1:0"), 0).value();
}

// Lets the other side act whenever the time is asked for, on the same thread.
// Once it has no more to say, all deadlines are over.
class Acting final : public Clock {
 public:
  explicit Acting(std::function<bool()> act) : act_(std::move(act)) {}
  Time Now() const override {
    if (!over_) over_ = !act_();
    now_ += std::chrono::milliseconds(1);
    return over_ ? now_ + std::chrono::hours(1) : now_;
  }

 private:
  const std::function<bool()> act_;
  mutable bool over_ = false;
  mutable Time now_{0};
};

// The other side of a connection at the rendezvous. What it sends after it has
// said who it is, or instead, is up to the choices.
class Other {
 public:
  explicit Other(Choices* choices)
      : choices_(*choices),
        knows_(choices_.Byte() % 2 == 0),
        polite_(choices_.Byte() % 4 != 0),
        left_(choices_.Byte() % 5) {}
  virtual ~Other() = default;

  bool knows() const { return knows_; }
  // Returns false if it has come to its end.
  bool Act() {
    if (!stream_) return Open() || ++idle_ < 20;
    Frame frame;
    if (stream_->Read(&frame) == FrameStream::State::kFrame) Hear(frame);
    if (polite_ && !introduced_ && ++idle_ < 20) return true;
    if (left_-- <= 0) {
      stream_.reset();
      return false;
    }
    std::string text = AnyFrame();
    choices_.Spoil(&text);
    Say(std::move(text));
    return true;
  }

 protected:
  // Returns whether there is a connection now.
  virtual bool Open() = 0;
  virtual void Hear(const Frame& frame) = 0;
  void Connected(Socket socket) {
    stream_.emplace(std::move(socket), std::size_t{1} << 20);
  }
  void Say(std::string text) {
    stream_->Queue(std::make_shared<const std::string>(std::move(text)));
    static_cast<void>(stream_->Flush());
  }
  void Introduced() { introduced_ = true; }
  // The right proof, if it can be known.
  Bits256 Proof(FrameType type, const Bits256& challenge,
                const rendezvous::Join& join) {
    return knows_ ? rendezvous::ProofOf(type, Secret(), challenge, join)
                  : BitsOf(&choices_);
  }
  Choices& choices() { return choices_; }

 private:
  std::string AnyFrame() {
    const auto type = static_cast<FrameType>(choices_.Byte() % 11);
    std::string body;
    if (choices_.Byte() % 4 != 0) rendezvous::PutNumber(1, &body);
    for (int i = choices_.Byte() % 8; i > 0; --i) {
      body += static_cast<char>(choices_.Byte());
    }
    return rendezvous::EncodeFrame(type, body);
  }

  Choices choices_;
  const bool knows_;
  const bool polite_;  // Says nothing else before it has said who it is.
  int left_;
  int idle_ = 0;
  bool introduced_ = false;
  std::optional<FrameStream> stream_;
};

class RankZero final : public Other {
 public:
  explicit RankZero(Choices* choices) : Other(choices) {}
  std::string address() const { return LocalAddress(listener_).ToString(); }

 private:
  bool Open() override {
    pollfd ready = {listener_.fd(), POLLIN, 0};
    if (::poll(&ready, 1, 0) != 1) return false;
    Connected(Accept(listener_).value());
    challenge_ = BitsOf(&choices());
    Say(rendezvous::EncodeFrame(FrameType::kChallenge, View(challenge_)));
    return true;
  }
  void Hear(const Frame& frame) override {
    const auto join = rendezvous::DecodeJoin(frame.body);
    if (frame.type != FrameType::kJoin || !join) return;
    const Bits256 proof = Proof(FrameType::kWelcome, challenge_, *join);
    Say(rendezvous::EncodeFrame(FrameType::kWelcome, View(proof)));
    Introduced();
  }

  const Socket listener_ = ListenHere();
  Bits256 challenge_ = {};
};

class Member final : public Other {
 public:
  Member(Choices* choices, std::string address)
      : Other(choices), address_(std::move(address)) {}

 private:
  bool Open() override {
    Result<Socket> socket = StartConnect(*SocketAddress::Parse(address_), 0);
    if (!socket.ok()) return false;
    pollfd ready = {socket.value().fd(), POLLOUT, 0};
    if (::poll(&ready, 1, 1000) != 1 || ConnectError(socket.value()) != 0) {
      return false;
    }
    Connected(std::move(socket).value());
    return true;
  }
  void Hear(const Frame& frame) override {
    rendezvous::BodyReader reader(frame.body);
    const Bits256 challenge = reader.Bits();
    if (frame.type != FrameType::kChallenge || !reader.Complete()) return;
    rendezvous::Join join{choices().Byte() % 3U, 2, BitsOf(&choices()), {}};
    join.proof = Proof(FrameType::kJoin, challenge, join);
    Say(rendezvous::EncodeFrame(FrameType::kJoin,
                                rendezvous::EncodeJoin(join)));
    Say(rendezvous::EncodeFrame(FrameType::kCard,
                                choices().Byte() % 2 == 0 ? "card" : ""));
    Introduced();
  }

  const std::string address_;
};

Result<std::string> MeetIt(Other* other, const std::string& address, int rank) {
  const Acting clock([&] { return other->Act(); });
  RendezvousOptions options;
  options.address = address;
  options.secret = Secret();
  options.rank = rank;
  options.size = 2;
  options.deadline = std::chrono::minutes(1);
  options.check_card = [](int, const std::string& card) {
    return card.empty() ? Status(StatusCode::kDataLoss, "empty") : Status();
  };
  const Introduce introduce = [](const auto&, const std::vector<int>& ranks) {
    return std::vector<std::string>(ranks.size(), "all");
  };
  return Meet(options, "mine", introduce, clock);
}

void CheckJoiner(Choices choices) {
  RankZero zero(&choices);
  const auto met = MeetIt(&zero, zero.address(), 1);
  Require(zero.knows() || !met.ok(), "a false rank 0 introduces nobody");
}

void CheckServer(Choices choices) {
  const std::string address = LocalAddress(ListenHere()).ToString();
  Member member(&choices, address);
  const auto met = MeetIt(&member, address, 0);
  Require(member.knows() || !met.ok(), "a stranger is no rank");
  Require(!met.ok() || met.value() == "all", "what it was to be told");
}

// The peer that this rank dials knows no secret.
void CheckOutgoing(Choices choices) {
  const Socket listener = ListenHere();
  OutgoingLane::Args args;
  args.hello.from = 1;
  args.hello.lanes = 2;
  args.hello.dial = 1;
  args.secret = Secret();
  Clock::Time now{0};
  OutgoingLane lane(args, {LocalAddress(listener)}, now);
  Require(lane.Start(now).ok(), "can begin");
  std::optional<Socket> peer;
  for (int i = choices.Byte() % 6; i >= 0; --i) {
    pollfd ready = {listener.fd(), POLLIN, 0};
    if (!peer && ::poll(&ready, 1, 1000) == 1) peer = Accept(listener).value();
    std::vector<OutgoingLane::Interest> interests;
    lane.AddInterests(&interests);
    for (const OutgoingLane::Interest& interest : interests) {
      pollfd at = {interest.fd, interest.events, 0};
      if (::poll(&at, 1, 0) != 1) continue;
      Require(lane.OnReady(interest.attempt, now).ok(),
              "who has proven nothing ends nothing");
    }
    Require(!lane.connected(), "a false welcome is none");
    const auto bytes = EncodeLaneHello(HelloOf(&choices));
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    choices.Spoil(&text);
    if (peer) static_cast<void>(Send(*peer, text.data(), text.size()));
  }
}

void CheckLocalHello(Choices choices) {
  int sockets[2];
  Require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0,
          "two ends");
  const Fd one(sockets[0]);
  const Fd other(sockets[1]);
  Hello hello;
  SetFailure(Status(StatusCode::kAborted, std::string(choices.Byte() * 5, 'w')),
             &hello);
  hello.kind = choices.Byte() % 6;
  std::string text(sizeof(hello), '\0');
  std::memcpy(text.data(), &hello, sizeof(hello));
  choices.Spoil(&text);
  text.resize(text.size() - choices.Byte() % 2);
  Require(::send(one.get(), text.data(), text.size(), 0) ==
              static_cast<ssize_t>(text.size()),
          "room for a hello");
  const auto received = ReceiveHello(other);
  if (!received.ok()) return;
  Require(received.value().hello.kind != Hello::kOffer, "no memory came");
  Require(!FailureOf(received.value().hello).ok(), "an error is an error");
}

void CheckIntroduction(Choices choices) {
  std::vector<std::string> cards;
  for (const char* host : {"a", "b", "a"}) {
    Card card;
    card.host_id = host;
    card.addresses["tcp"] = "10.0.0.1:1000";
    card.descriptors = 1000;
    cards.push_back(EncodeCard(card));
  }
  const auto texts = IntroduceRanks({"auto", 2, false}, cards, {1});
  Require(texts.ok(), "cards are fine");
  std::string text = texts.value().front();
  choices.Spoil(&text);
  const auto read = DecodeIntroduction(3, text);
  if (!read.ok()) return;
  Require(read.value().hosts.size() == 3, "a host for each rank");
  Require(read.value().local.rank < read.value().local.ranks, "a local place");
}

}  // namespace
}  // namespace gradientflow

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t bytes) {
  gradientflow::fuzz::Choices choices(data, bytes);
  switch (choices.Byte() % 16) {
    case 0:
    case 1:
      gradientflow::CheckJoiner(choices);
      break;
    case 2:
    case 3:
      gradientflow::CheckServer(choices);
      break;
    case 4:
    case 5:
      gradientflow::CheckOutgoing(choices);
      break;
    case 6:
    case 7:
    case 8:
      gradientflow::CheckIntroduction(choices);
      break;
    default:
      gradientflow::CheckLocalHello(choices);
  }
  return 0;
}
