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
  kData = 1,   // A message that its sender may send unasked.
  kPing = 2,   // Asks for a kPong. No payload.
  kPong = 3,   // Sign of life; payload = progress text.
  kAbort = 4,  // The sender has failed; tag = status code, payload = message.
  // The sender leaves in good order. Only answers, and messages that were
  // called for, may follow.
  kBye = 5,
  // A message that waits for the peer to call for it, with the header that it
  // would have as kData; payload = Announcement.
  kAnnounce = 6,
  // Calls for an announced message; signature = Announcement::send, and tag and
  // group are to be those of the kPayload.
  kClear = 7,
  // An announced message will not be received; signature = Announcement::send.
  kDecline = 8,
  kPayload = 9,  // An announced message that was called for.
  kCredit = 10,  // The peer may send `tag` bytes more unasked.
  // Sets up a better way for data than this link. The links use it among
  // themselves.
  kRail = 11,
};

// Kinds that carry no message of a caller. They travel apart from data, so that
// no data holds them up.
constexpr bool IsControl(MessageKind kind) {
  return kind != MessageKind::kData && kind != MessageKind::kAnnounce &&
         kind != MessageKind::kPayload;
}

// Version of the frame below. Ranks that speak different versions refuse each
// other.
inline constexpr std::uint8_t kWireVersion = 3;
inline constexpr std::size_t kHeaderBytes = 40;
inline constexpr std::uint64_t kMaxPayloadBytes = std::uint64_t{1} << 40;
// For kPing, kPong, kAbort, kBye and kRail.
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

// The payload of a kAnnounce.
struct Announcement {
  std::uint64_t bytes = 0;  // Of the message.
  std::uint64_t send = 0;   // The sender's name for it.
};
inline constexpr std::size_t kAnnouncementBytes = 16;
using AnnouncementBytes = std::array<std::byte, kAnnouncementBytes>;

AnnouncementBytes EncodeAnnouncement(const Announcement& announcement);
// Returns kDataLoss if the length is impossible.
Result<Announcement> DecodeAnnouncement(const AnnouncementBytes& bytes);

// Encodes in little-endian, with a magic, a version and a checksum over the
// rest.
std::array<std::byte, kHeaderBytes> EncodeHeader(const Header& header);

// Returns kDataLoss if the bytes are not a header of this version or contain an
// impossible length; the message says what was expected and what was seen.
Result<Header> DecodeHeader(std::span<const std::byte, kHeaderBytes> bytes);

}  // namespace gradientflow
