#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gradientflow/base/status.h"

// The frame that precedes every payload between two ranks; the grammar and a
// worked example are in gradientflow/docs/wire_format.md.
namespace gradientflow {

// Matches a receive to a send of the same pair of ranks in one group.
using Tag = std::uint64_t;
// Which of the job's groups of ranks; 0: all of them.
using GroupId = std::uint32_t;

struct MessageId {
  // A tag alone is one of all ranks.
  MessageId(Tag of = 0, GroupId in = 0) : tag(of), group(in) {}
  bool operator==(const MessageId&) const = default;
  Tag tag;
  GroupId group;
};

enum class MessageKind : std::uint8_t {
  kData = 1,
  kPing = 2,   // "Are you there?"; tag = the sender's count of pings.
  kPong = 3,   // Answer; tag = the ping's; payload = a Progress text.
  kAbort = 4,  // The sender gives the job up; payload = an AbortNotice.
  kBye = 5,    // The sender closes in good order; nothing follows.
};

// Of the frame below. Ranks that speak another refuse each other.
inline constexpr std::uint8_t kWireVersion = 2;
inline constexpr std::size_t kHeaderBytes = 40;
inline constexpr std::uint64_t kMaxPayloadBytes = std::uint64_t{1} << 40;
inline constexpr std::uint64_t kMaxControlBytes = 16384;  // All but kData.
// Header::flags. All other bits are zero.
inline constexpr std::uint32_t kFlagNonfinite = 1;  // Payload holds inf/NaN.

struct Header {
  MessageKind kind = MessageKind::kData;
  std::uint32_t flags = 0;
  Tag tag = 0;
  std::uint64_t payload_bytes = 0;
  // A hash of the call that sends the message (kind, dtype, operation,
  // count...): sender and receiver must agree. 0: a message by itself.
  std::uint64_t signature = 0;
  GroupId group = 0;
};

// Little-endian, with a magic, a version and a checksum over the rest.
std::array<std::byte, kHeaderBytes> EncodeHeader(const Header& header);

// kDataLoss if the bytes are no header of this version, or name an impossible
// length; the message says what was expected and what was seen.
Result<Header> DecodeHeader(std::span<const std::byte, kHeaderBytes> bytes);

}  // namespace gradientflow
