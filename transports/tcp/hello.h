#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "gradientflow/base/status.h"
#include "transports/tcp/socket.h"

namespace gradientflow {

// What the ends of a fresh connection tell each other before the first
// message: who connects sends kHello, who accepts answers kWelcome, and who
// connects says kConfirm on the one connection it keeps. The format is in
// gradientflow/docs/wire_format.md.
struct LaneHello {
  enum class Step : std::uint32_t { kHello = 1, kWelcome = 2, kConfirm = 3 };
  Step step = Step::kHello;
  std::uint64_t session_key = 0;
  std::uint32_t from = 0;  // Ranks.
  std::uint32_t to = 0;
  std::uint32_t lane = 0;
  std::uint32_t lanes = 0;
};

inline constexpr std::size_t kLaneHelloBytes = 40;

std::array<std::byte, kLaneHelloBytes> EncodeLaneHello(const LaneHello& hello);
// kDataLoss says what was expected and seen; never the key.
Result<LaneHello> DecodeLaneHello(
    const std::array<std::byte, kLaneHelloBytes>& bytes);

// The hello that comes next on a connection, piece by piece.
class HelloReader {
 public:
  enum class State : std::uint8_t { kWaiting, kComplete, kClosed };
  // Reads what is there of it, and nothing beyond.
  State Read(const Socket& socket);
  // REQUIRES kComplete; the next hello may be read then.
  Result<LaneHello> Take();
  int error() const { return error_; }  // errno of kClosed; 0: by the peer.

 private:
  std::array<std::byte, kLaneHelloBytes> bytes_ = {};
  std::size_t have_ = 0;
  int error_ = 0;
};

// REQUIRES room in the connection's buffer, as a fresh one has.
Status WriteHello(const Socket& socket, const LaneHello& hello);

bool SameKey(std::uint64_t a, std::uint64_t b);  // In constant time.

}  // namespace gradientflow
