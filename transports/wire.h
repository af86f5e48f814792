#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gradientflow/base/status.h"

// The frame that precedes every payload between two ranks.
// gradientflow/docs/wire_format.md has the grammar and a worked example.
namespace gradientflow {

// Matches a receive to a send of the same pair of ranks in one group.
using Tag = std::uint64_t;
// Number of one of the job's groups of ranks; 0 is the group of all ranks.
using GroupId = std::uint32_t;

struct MessageId {
  // A tag alone belongs to the group of all ranks.
  MessageId(Tag of = 0, GroupId in = 0) : tag(of), group(in) {}
  bool operator==(const MessageId&) const = default;
  Tag tag;
  GroupId group;
};

enum class MessageKind : std::uint8_t {
  kData = 1,
  kPing = 2,   // Asks for a kPong. No payload.
  kPong = 3,   // Sign of life; payload = progress text.
  kAbort = 4,  // The sender has failed; tag = status code, payload = message.
  kBye = 5,    // The sender closes in good order; nothing follows.
};

// Version of the frame below. Ranks that speak different versions refuse each
// other.
inline constexpr std::uint8_t kWireVersion = 2;
inline constexpr std::size_t kHeaderBytes = 40;
inline constexpr std::uint64_t kMaxPayloadBytes = std::uint64_t{1} << 40;
// For kinds other than kData.
inline constexpr std::uint64_t kMaxControlBytes = 16384;
// A bit of Header::flags. All other bits are zero.
// The payload holds an infinity or NaN.
inline constexpr std::uint32_t kFlagNonfinite = 1;

struct Header {
  MessageKind kind = MessageKind::kData;
  std::uint32_t flags = 0;
  Tag tag = 0;
  std::uint64_t payload_bytes = 0;
  // A hash of the call that sends the message (kind, dtype, operation,
  // count...), on which sender and receiver must agree. 0 for a message that
  // belongs to no call. In a message of Fabric::Tell(), the number it tells.
  std::uint64_t signature = 0;
  GroupId group = 0;
};

// Encodes in little-endian, with a magic, a version and a checksum over the
// rest.
std::array<std::byte, kHeaderBytes> EncodeHeader(const Header& header);

// Returns kDataLoss if the bytes are not a header of this version or contain an
// impossible length; the message says what was expected and what was seen.
Result<Header> DecodeHeader(std::span<const std::byte, kHeaderBytes> bytes);

}  // namespace gradientflow
