#include "transports/tcp/hello.h"

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include "gradientflow/base/little_endian.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

constexpr std::string_view kMagic("GFhello\n", 8);
constexpr std::uint32_t kVersion = 4;

// Offsets of the fields. All numbers are little-endian.
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kKindAt = 12;
constexpr std::size_t kFromAt = 16;
constexpr std::size_t kToAt = 20;
constexpr std::size_t kLaneAt = 24;
constexpr std::size_t kLanesAt = 28;
constexpr std::size_t kDialAt = 32;
constexpr std::size_t kNonceAt = 36;
constexpr std::size_t kProofAt = 68;

}  // namespace

std::array<std::byte, kLaneHelloBytes> EncodeLaneHello(const LaneHello& hello) {
  std::array<std::byte, kLaneHelloBytes> bytes;
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  PutLittleEndian(&bytes[kVersionAt], kVersion);
  PutLittleEndian(&bytes[kKindAt], static_cast<std::uint32_t>(hello.kind));
  PutLittleEndian(&bytes[kFromAt], hello.from);
  PutLittleEndian(&bytes[kToAt], hello.to);
  PutLittleEndian(&bytes[kLaneAt], hello.lane);
  PutLittleEndian(&bytes[kLanesAt], hello.lanes);
  PutLittleEndian(&bytes[kDialAt], hello.dial);
  std::memcpy(&bytes[kNonceAt], hello.nonce.data(), hello.nonce.size());
  std::memcpy(&bytes[kProofAt], hello.proof.data(), hello.proof.size());
  return bytes;
}

Result<LaneHello> DecodeLaneHello(
    const std::array<std::byte, kLaneHelloBytes>& bytes) {
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    return Status(StatusCode::kDataLoss,
                  "hello: expected \"GFhello\", seen other bytes: not a rank "
                  "of this library");
  }
  const auto version = GetLittleEndian<std::uint32_t>(&bytes[kVersionAt]);
  const auto kind = GetLittleEndian<std::uint32_t>(&bytes[kKindAt]);
  if (version != kVersion || kind < 1 || kind > 4) {
    return Status(
        StatusCode::kDataLoss,
        StrCat("hello: expected version ", kVersion,
               " and kind 1 to 4, seen version ", version, " and kind ", kind));
  }
  LaneHello hello;
  hello.kind = static_cast<LaneHello::Kind>(kind);
  hello.from = GetLittleEndian<std::uint32_t>(&bytes[kFromAt]);
  hello.to = GetLittleEndian<std::uint32_t>(&bytes[kToAt]);
  hello.lane = GetLittleEndian<std::uint32_t>(&bytes[kLaneAt]);
  hello.lanes = GetLittleEndian<std::uint32_t>(&bytes[kLanesAt]);
  hello.dial = GetLittleEndian<std::uint32_t>(&bytes[kDialAt]);
  std::memcpy(hello.nonce.data(), &bytes[kNonceAt], hello.nonce.size());
  std::memcpy(hello.proof.data(), &bytes[kProofAt], hello.proof.size());
  return hello;
}

// The kind and the direction are among the bytes, so a proof stands for one
// side of one kind. All parts have fixed lengths.
Bits256 ProofOf(const LaneHello& hello, const Bits256& secret,
                const Bits256& challenge) {
  const auto bytes = EncodeLaneHello(hello);
  std::string message(reinterpret_cast<const char*>(bytes.data()), kProofAt);
  message += View(challenge);
  return HmacSha256(View(secret), message);
}

HelloReader::State HelloReader::Read(const Socket& socket) {
  while (have_ < bytes_.size()) {
    const std::int64_t got =
        Receive(socket, &bytes_[have_], bytes_.size() - have_);
    if (got == -EAGAIN || got == -EWOULDBLOCK) return State::kWaiting;
    if (got <= 0) {
      error_ = static_cast<int>(-got);
      return State::kClosed;
    }
    have_ += static_cast<std::size_t>(got);
  }
  return State::kComplete;
}

Result<LaneHello> HelloReader::Take() {
  have_ = 0;
  return DecodeLaneHello(bytes_);
}

Status WriteHello(const Socket& socket, const LaneHello& hello) {
  const auto bytes = EncodeLaneHello(hello);
  const std::int64_t sent = Send(socket, bytes.data(), bytes.size());
  if (sent == static_cast<std::int64_t>(bytes.size())) return Status();
  return SocketError(StatusCode::kUnavailable, "hello",
                     sent < 0 ? static_cast<int>(-sent) : EAGAIN);
}

}  // namespace gradientflow
