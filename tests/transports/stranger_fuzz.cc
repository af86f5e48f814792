// What anybody can send before proving anything: frames and joins of the
// rendezvous, hellos of lanes, and cards, which a rank may have made up.

#include <poll.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/manual_clock.h"
#include "gradientflow/base/secret.h"
#include "gradientflow/communicator/card.h"
#include "tests/transports/fuzz_hello.h"
#include "tests/transports/fuzz_input.h"
#include "tests/transports/tcp_pair.h"
#include "transports/rendezvous/frames.h"
#include "transports/tcp/hello.h"
#include "transports/tcp/incoming.h"
#include "transports/tcp/socket.h"

namespace gradientflow {
namespace {

using fuzz::BitsOf;
using fuzz::Choices;
using fuzz::HelloOf;
using fuzz::Require;
using rendezvous::FrameStream;
using rendezvous::FrameType;

constexpr std::size_t kMostBodyBytes = 300;

std::string RestOf(const Choices& choices) {
  return {reinterpret_cast<const char*>(choices.rest().data()),
          choices.rest().size()};
}

tcp_test::Connection Connected() {
  auto made = tcp_test::MakeConnection("127.0.0.1:0");
  Require(made.has_value(), "a connection");
  return *std::move(made);
}

void SendAll(const Socket& to, const std::string& bytes) {
  Require(Send(to, bytes.data(), bytes.size()) ==
              static_cast<std::int64_t>(bytes.size()),
          "room for a few bytes");
}

// Every decoder of a body takes any body.
void DecodeBody(const std::string& body) {
  const auto join = rendezvous::DecodeJoin(body);
  if (join) Require(rendezvous::EncodeJoin(*join) == body, "a join's inverse");
  for (const std::size_t count : {0U, 1U, 3U}) {
    const auto texts = rendezvous::DecodeTexts(body, count);
    if (!texts) continue;
    Require(texts->size() == count, "number of texts");
    Require(rendezvous::EncodeTexts(*texts) == body, "the texts' inverse");
  }
  Require(!rendezvous::DecodeStatus(body).ok(), "an error is an error");
}

// A stream of frames, some of them spoilt, ends at the first that is none, as
// one that is decoded at once does.
void CheckFrames(Choices choices) {
  std::string stream;
  std::vector<std::string> frames;
  for (int i = choices.Byte() % 6; i > 0; --i) {
    const auto type = static_cast<FrameType>(choices.Byte() % 11);
    std::string body(choices.Byte() % 96, '\0');
    if (choices.Byte() % 2 == 0) {
      body = rendezvous::EncodeJoin(
          {choices.Byte(), choices.Byte(), BitsOf(&choices), BitsOf(&choices)});
    }
    std::string frame = rendezvous::EncodeFrame(type, body);
    choices.Spoil(&frame);
    stream += frame;
  }
  stream += RestOf(choices);
  tcp_test::Connection pair = Connected();
  SendAll(pair.one, stream);
  FrameStream reader(std::move(pair.other), kMostBodyBytes);
  pair.one.Close();
  std::string rest = stream;
  for (;;) {
    rendezvous::Frame frame;
    const FrameStream::State state = reader.Read(&frame);
    if (state == FrameStream::State::kWaiting) {
      pollfd ready = {reader.fd(), POLLIN, 0};
      Require(::poll(&ready, 1, 5000) == 1, "the end arrives");
      continue;
    }
    if (state != FrameStream::State::kFrame) {
      Require(!reader.trouble().empty(), "has a reason");
      return;
    }
    const std::size_t bytes = rendezvous::kFrameHeaderBytes + frame.body.size();
    Require(bytes <= rest.size() && frame.body.size() <= kMostBodyBytes,
            "a frame that was sent");
    const auto expected = rendezvous::DecodeFrame(rest.substr(0, bytes));
    Require(expected.ok() && expected.value().type == frame.type &&
                expected.value().body == frame.body,
            "the same frame");
    rest.erase(0, bytes);
    DecodeBody(frame.body);
  }
}

// Whatever a stranger sends, it gets no lane, and no error ends the set-up.
void CheckHellos(Choices choices) {
  static const Bits256 secret = RandomBits().value();
  static const ManualClock clock;
  IncomingLanes lanes({0, secret, {0, 1}}, clock);
  tcp_test::Connection pair = Connected();
  const int fd = pair.other.fd();
  lanes.Admit(std::move(pair.other));
  for (int i = choices.Byte() % 4; i > 0; --i) {
    const auto bytes = EncodeLaneHello(HelloOf(&choices));
    const auto decoded = DecodeLaneHello(bytes);
    if (decoded.ok()) {
      Require(EncodeLaneHello(decoded.value()) == bytes, "a hello's inverse");
    }
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    choices.Spoil(&text);
    if (Send(pair.one, text.data(), text.size()) < 0) return;  // Turned away.
    pollfd ready = {fd, POLLIN, 0};
    if (lanes.Descriptors().empty()) return;
    Require(::poll(&ready, 1, 5000) == 1, "it arrives");
    Require(lanes.OnReady(fd).ok(), "a stranger ends nothing");
    Require(lanes.FindComplete() < 0, "a stranger gets no lane");
  }
}

void CheckCard(Choices choices) {
  Card card;
  card.nonce = BitsOf(&choices);
  card.host_id = std::string(choices.Byte() % 8, 'h');
  card.agreement = "a=1\nb=2";
  std::string text = EncodeCard(card);
  const auto whole = DecodeCard(1, text);
  Require(whole.ok() && whole.value().nonce == card.nonce &&
              whole.value().host_id == card.host_id,
          "a card's inverse");
  choices.Spoil(&text);
  static_cast<void>(DecodeCard(1, text));
  static_cast<void>(DecodeCard(1, RestOf(choices)));
}

}  // namespace
}  // namespace gradientflow

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t bytes) {
  gradientflow::fuzz::Choices choices(data, bytes);
  switch (choices.Byte() % 3) {
    case 0:
      gradientflow::CheckFrames(choices);
      break;
    case 1:
      gradientflow::CheckHellos(choices);
      break;
    default:
      gradientflow::CheckCard(choices);
  }
  return 0;
}
