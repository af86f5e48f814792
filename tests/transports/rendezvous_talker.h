#pragma once

#include <poll.h>

#include <cstdint>
#include <string>

#include "gradientflow/base/secret.h"
#include "tests/transports/rendezvous_ranks.h"
#include "transports/rendezvous/frames.h"

namespace gradientflow::rendezvous_test {

// The end of a connection to a rendezvous that speaks for itself. It knows the
// secret of OptionsFor().
class Talker {
 public:
  explicit Talker(const std::string& address)
      : stream_(ConnectWithPatience(address), 1 << 20) {}

  // Returns false if the connection ends before such a frame.
  bool Await(rendezvous::FrameType type) {
    for (;;) {
      pollfd ready = {stream_.fd(), POLLIN, 0};
      if (::poll(&ready, 1, 5000) != 1) return false;
      switch (stream_.Read(&frame_)) {
        case rendezvous::FrameStream::State::kFrame:
          if (frame_.type == type) return true;
          continue;
        case rendezvous::FrameStream::State::kWaiting:
          continue;
        default:
          return false;
      }
    }
  }
  bool Send(rendezvous::FrameType type, const std::string& body) {
    stream_.Queue(rendezvous::MakeFrame(type, body));
    return stream_.Flush();
  }
  // Sends what need not be a frame.
  bool SendBytes(std::string bytes) {
    stream_.Queue(std::make_shared<const std::string>(std::move(bytes)));
    return stream_.Flush();
  }
  // Joins as a rank of the job, but for its card.
  bool JoinWithoutCard(std::uint32_t rank, std::uint32_t size) {
    if (!Await(rendezvous::FrameType::kChallenge)) return false;
    rendezvous::Join join{rank, size, RandomBits().value(), {}};
    join.proof =
        rendezvous::ProofOf(rendezvous::FrameType::kJoin,
                            JobSecret("secret", ""), BitsIn(frame_.body), join);
    return Send(rendezvous::FrameType::kJoin, rendezvous::EncodeJoin(join));
  }
  bool Join(std::uint32_t rank, std::uint32_t size,
            const std::string& card = "a card") {
    return JoinWithoutCard(rank, size) &&
           Send(rendezvous::FrameType::kCard, card) &&
           Await(rendezvous::FrameType::kWelcome);
  }
  static Bits256 BitsIn(const std::string& body) {
    return rendezvous::BodyReader(body).Bits();
  }
  const rendezvous::Frame& frame() const { return frame_; }
  int fd() const { return stream_.fd(); }

 private:
  rendezvous::FrameStream stream_;
  rendezvous::Frame frame_;
};

}  // namespace gradientflow::rendezvous_test
