#include "transports/tcp/hello.h"

#include <cerrno>
#include <cstring>
#include <string_view>

#include "gradientflow/base/little_endian.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

constexpr std::string_view kMagic("GFhello\n", 8);
constexpr std::uint32_t kVersion = 2;

// Offsets of the fields. All numbers are little-endian.
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kStepAt = 12;
constexpr std::size_t kKeyAt = 16;
constexpr std::size_t kFromAt = 24;
constexpr std::size_t kToAt = 28;
constexpr std::size_t kLaneAt = 32;
constexpr std::size_t kLanesAt = 36;

}  // namespace

std::array<std::byte, kLaneHelloBytes> EncodeLaneHello(const LaneHello& hello) {
  std::array<std::byte, kLaneHelloBytes> bytes;
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  PutLittleEndian(&bytes[kVersionAt], kVersion);
  PutLittleEndian(&bytes[kStepAt], static_cast<std::uint32_t>(hello.step));
  PutLittleEndian(&bytes[kKeyAt], hello.session_key);
  PutLittleEndian(&bytes[kFromAt], hello.from);
  PutLittleEndian(&bytes[kToAt], hello.to);
  PutLittleEndian(&bytes[kLaneAt], hello.lane);
  PutLittleEndian(&bytes[kLanesAt], hello.lanes);
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
  const auto step = GetLittleEndian<std::uint32_t>(&bytes[kStepAt]);
  if (version != kVersion || step < 1 || step > 3) {
    return Status(
        StatusCode::kDataLoss,
        StrCat("hello: expected version ", kVersion,
               " and step 1 to 3, seen version ", version, " and step ", step));
  }
  LaneHello hello;
  hello.step = static_cast<LaneHello::Step>(step);
  hello.session_key = GetLittleEndian<std::uint64_t>(&bytes[kKeyAt]);
  hello.from = GetLittleEndian<std::uint32_t>(&bytes[kFromAt]);
  hello.to = GetLittleEndian<std::uint32_t>(&bytes[kToAt]);
  hello.lane = GetLittleEndian<std::uint32_t>(&bytes[kLaneAt]);
  hello.lanes = GetLittleEndian<std::uint32_t>(&bytes[kLanesAt]);
  return hello;
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

bool SameKey(std::uint64_t a, std::uint64_t b) {
  // No early exit anywhere: a single operation on the whole words.
  return (a ^ b) == 0;
}

}  // namespace gradientflow
