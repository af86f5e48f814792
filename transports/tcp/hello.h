#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "gradientflow/base/secret.h"
#include "gradientflow/base/status.h"
#include "transports/tcp/socket.h"

namespace gradientflow {

// What the two ends of a fresh connection send each other before the first
// message. The side that connects sends kHello, the side that accepts answers
// kWelcome, and the side that connects sends kConfirm on the one connection
// that it keeps for the lane. The side that keeps the lanes that it has
// accepted says so by kAccept on the first of them, since both ranks may
// connect at the same time (LaneMaker). Each side challenges the other by
// random bits, and proves that it knows the secret of the session before it is
// believed. gradientflow/docs/wire_format.md has the format.
struct LaneHello {
  enum class Kind : std::uint32_t {
    kHello = 1,
    kWelcome = 2,
    kConfirm = 3,
    kAccept = 4
  };
  Kind kind = Kind::kHello;
  std::uint32_t from = 0;  // `from` and `to` are ranks.
  std::uint32_t to = 0;
  std::uint32_t lane = 0;
  std::uint32_t lanes = 0;
  // Counts how often `from` has opened all its lanes to `to`, from 1, so that
  // lanes of different times make no link together.
  std::uint32_t dial = 0;
  Bits256 nonce = {};  // The sender's challenge, the same in each hello.
  Bits256 proof = {};  // The answer to the other's; zero in kHello.
};

inline constexpr std::size_t kLaneHelloBytes = 100;

// Returns the proof that `hello` must carry, under the secret of the session
// and the other side's challenge. It covers everything else in the hello.
Bits256 ProofOf(const LaneHello& hello, const Bits256& secret,
                const Bits256& challenge);
inline bool IsProven(const LaneHello& hello, const Bits256& secret,
                     const Bits256& challenge) {
  return EqualBits(hello.proof, ProofOf(hello, secret, challenge));
}

std::array<std::byte, kLaneHelloBytes> EncodeLaneHello(const LaneHello& hello);
// kDataLoss says what was expected and seen.
Result<LaneHello> DecodeLaneHello(
    const std::array<std::byte, kLaneHelloBytes>& bytes);

// Reads the next hello of a connection, piece by piece.
class HelloReader {
 public:
  enum class State : std::uint8_t { kWaiting, kComplete, kClosed };
  // Reads what has arrived of the hello, and nothing beyond it.
  State Read(const Socket& socket);
  // REQUIRES kComplete. Afterwards the next hello may be read.
  Result<LaneHello> Take();
  // errno of kClosed; 0 if closed by the peer.
  int error() const { return error_; }

 private:
  std::array<std::byte, kLaneHelloBytes> bytes_ = {};
  std::size_t have_ = 0;
  int error_ = 0;
};

// REQUIRES room in the buffer of the connection, as a fresh one has.
Status WriteHello(const Socket& socket, const LaneHello& hello);

}  // namespace gradientflow
