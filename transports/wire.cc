#include "transports/wire.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "gradientflow/base/little_endian.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

constexpr std::uint16_t kMagic = 0x4647;  // "GF" in memory.
constexpr std::uint32_t kKnownFlags = kFlagNonfinite;

// A header is five words of eight bytes, which are put together in registers: a
// processor that reads back what it has just written in smaller parts waits for
// them. From the lowest bit up:
//
//   magic (16) | version (8) | kind (8) | flags (32)
//   tag (64)
//   payload_bytes (64)
//   signature (64)
//   group (32) | checksum (32)
using Words = std::array<std::uint64_t, kHeaderBytes / 8>;
constexpr int kVersionAt = 16;
constexpr int kKindAt = 24;
constexpr int kFlagsAt = 32;
constexpr int kChecksumAt = 32;

// Returns the checksum of a header in which that field is 0. It finds a stream
// that is out of step; it is no protection against an attacker.
std::uint32_t Checksum(const Words& words) {
  std::uint64_t hash = 0x9E3779B97F4A7C15;
  for (const std::uint64_t word : words) {
    hash = (hash ^ word) * 0xFF51AFD7ED558CCD;
    hash ^= hash >> 32;
  }
  return static_cast<std::uint32_t>(hash);
}

std::string Hex(std::uint64_t value) {
  char text[2 + 16 + 1];
  std::snprintf(text, sizeof(text), "0x%llx",
                static_cast<unsigned long long>(value));
  return text;
}

Status Broken(const std::string& what) {
  return Status(StatusCode::kDataLoss, StrCat("message header: ", what));
}

// The least and the most bytes of a payload.
std::pair<std::uint64_t, std::uint64_t> LengthsOf(MessageKind kind) {
  switch (kind) {
    case MessageKind::kData:
    case MessageKind::kPayload:
      return {0, kMaxPayloadBytes};
    case MessageKind::kAnnounce:
      return {kAnnouncementBytes, kAnnouncementBytes};
    case MessageKind::kClear:
    case MessageKind::kDecline:
    case MessageKind::kCredit:
      return {0, 0};
    case MessageKind::kPing:
    case MessageKind::kPong:
    case MessageKind::kAbort:
    case MessageKind::kBye:
    case MessageKind::kRail:
      break;
  }
  return {0, kMaxControlBytes};
}

Status CheckFields(std::uint8_t kind, const Header& header) {
  if (kind < static_cast<std::uint8_t>(MessageKind::kData) ||
      kind > static_cast<std::uint8_t>(MessageKind::kRail)) {
    return Broken(StrCat("expected a kind from 1 to 11, seen ", int{kind}));
  }
  if ((header.flags & ~kKnownFlags) != 0) {
    return Broken(StrCat("expected no flags but ", Hex(kKnownFlags), ", seen ",
                         Hex(header.flags)));
  }
  const auto [least, most] = LengthsOf(header.kind);
  if (header.payload_bytes < least || header.payload_bytes > most) {
    return Broken(StrCat("expected ", least == most ? "" : "at most ", most,
                         " bytes of payload in kind ", int{kind}, ", seen ",
                         header.payload_bytes));
  }
  return Status();
}

}  // namespace

std::array<std::byte, kHeaderBytes> EncodeHeader(const Header& header) {
  Words words = {
      std::uint64_t{kMagic} | std::uint64_t{kWireVersion} << kVersionAt |
          static_cast<std::uint64_t>(header.kind) << kKindAt |
          std::uint64_t{header.flags} << kFlagsAt,
      header.tag, header.payload_bytes, header.signature, header.group};
  words.back() |= std::uint64_t{Checksum(words)} << kChecksumAt;
  std::array<std::byte, kHeaderBytes> bytes;
  for (std::size_t i = 0; i < words.size(); ++i) {
    PutLittleEndian(&bytes[8 * i], words[i]);
  }
  return bytes;
}

// The checks go from the general to the special, so that the error says what is
// wrong: the protocol, the release, the bytes, or a field.
Result<Header> DecodeHeader(std::span<const std::byte, kHeaderBytes> bytes) {
  Words words;
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = GetLittleEndian<std::uint64_t>(&bytes[8 * i]);
  }
  const auto magic = static_cast<std::uint16_t>(words[0]);
  if (magic != kMagic) {
    return Broken(StrCat("expected magic ", Hex(kMagic), ", seen ", Hex(magic),
                         ": not this protocol, or out of step"));
  }
  const auto version = static_cast<std::uint8_t>(words[0] >> kVersionAt);
  if (version != kWireVersion) {
    return Broken(StrCat("expected version ", int{kWireVersion}, ", seen ",
                         int{version}, ": the ranks run different releases"));
  }
  const auto checksum = static_cast<std::uint32_t>(words.back() >> kChecksumAt);
  words.back() = static_cast<std::uint32_t>(words.back());
  if (checksum != Checksum(words)) {
    return Broken(StrCat("expected checksum ", Hex(Checksum(words)), ", seen ",
                         Hex(checksum)));
  }
  const auto kind = static_cast<std::uint8_t>(words[0] >> kKindAt);
  Header header;
  header.kind = static_cast<MessageKind>(kind);
  header.flags = static_cast<std::uint32_t>(words[0] >> kFlagsAt);
  header.tag = words[1];
  header.payload_bytes = words[2];
  header.signature = words[3];
  header.group = static_cast<std::uint32_t>(words[4]);
  GF_RETURN_IF_ERROR(CheckFields(kind, header));
  return header;
}

AnnouncementBytes EncodeAnnouncement(const Announcement& announcement) {
  AnnouncementBytes bytes;
  PutLittleEndian(bytes.data(), announcement.bytes);
  PutLittleEndian(bytes.data() + 8, announcement.send);
  return bytes;
}

Result<Announcement> DecodeAnnouncement(const AnnouncementBytes& bytes) {
  const Announcement announcement{
      GetLittleEndian<std::uint64_t>(bytes.data()),
      GetLittleEndian<std::uint64_t>(bytes.data() + 8)};
  if (announcement.bytes == 0 || announcement.bytes > kMaxPayloadBytes) {
    return Status(
        StatusCode::kDataLoss,
        StrCat("announcement: expected a message of 1 to ", kMaxPayloadBytes,
               " bytes, seen ", announcement.bytes));
  }
  return announcement;
}

}  // namespace gradientflow
