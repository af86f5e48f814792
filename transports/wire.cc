#include "transports/wire.h"

#include <cstdio>
#include <string>
#include <utility>

#include "gradientflow/base/little_endian.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

constexpr std::uint16_t kMagic = 0x4647;  // "GF" in memory.
constexpr std::uint32_t kKnownFlags = kFlagNonfinite;

// Offsets of the fields.
constexpr std::size_t kMagicAt = 0;
constexpr std::size_t kVersionAt = 2;
constexpr std::size_t kKindAt = 3;
constexpr std::size_t kFlagsAt = 4;
constexpr std::size_t kTagAt = 8;
constexpr std::size_t kPayloadBytesAt = 16;
constexpr std::size_t kSignatureAt = 24;
constexpr std::size_t kGroupAt = 32;
constexpr std::size_t kChecksumAt = 36;

// Covers all fields before the checksum itself. It finds a stream that is out
// of step; it is no protection against an attacker.
std::uint32_t Checksum(const std::byte* header) {
  const std::uint64_t words[] = {GetLittleEndian<std::uint64_t>(header),
                                 GetLittleEndian<std::uint64_t>(header + 8),
                                 GetLittleEndian<std::uint64_t>(header + 16),
                                 GetLittleEndian<std::uint64_t>(header + 24),
                                 GetLittleEndian<std::uint32_t>(header + 32)};
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
  std::array<std::byte, kHeaderBytes> bytes;
  PutLittleEndian(&bytes[kMagicAt], kMagic);
  PutLittleEndian(&bytes[kVersionAt], kWireVersion);
  PutLittleEndian(&bytes[kKindAt], static_cast<std::uint8_t>(header.kind));
  PutLittleEndian(&bytes[kFlagsAt], header.flags);
  PutLittleEndian(&bytes[kTagAt], header.tag);
  PutLittleEndian(&bytes[kPayloadBytesAt], header.payload_bytes);
  PutLittleEndian(&bytes[kSignatureAt], header.signature);
  PutLittleEndian(&bytes[kGroupAt], header.group);
  PutLittleEndian(&bytes[kChecksumAt], Checksum(bytes.data()));
  return bytes;
}

// The checks go from the general to the special, so that the error says what is
// wrong: the protocol, the release, the bytes, or a field.
Result<Header> DecodeHeader(std::span<const std::byte, kHeaderBytes> bytes) {
  const auto magic = GetLittleEndian<std::uint16_t>(&bytes[kMagicAt]);
  if (magic != kMagic) {
    return Broken(StrCat("expected magic ", Hex(kMagic), ", seen ", Hex(magic),
                         ": not this protocol, or out of step"));
  }
  const auto version = GetLittleEndian<std::uint8_t>(&bytes[kVersionAt]);
  if (version != kWireVersion) {
    return Broken(StrCat("expected version ", int{kWireVersion}, ", seen ",
                         int{version}, ": the ranks run different releases"));
  }
  const auto checksum = GetLittleEndian<std::uint32_t>(&bytes[kChecksumAt]);
  if (checksum != Checksum(bytes.data())) {
    return Broken(StrCat("expected checksum ", Hex(Checksum(bytes.data())),
                         ", seen ", Hex(checksum)));
  }
  const auto kind = GetLittleEndian<std::uint8_t>(&bytes[kKindAt]);
  Header header;
  header.kind = static_cast<MessageKind>(kind);
  header.flags = GetLittleEndian<std::uint32_t>(&bytes[kFlagsAt]);
  header.tag = GetLittleEndian<std::uint64_t>(&bytes[kTagAt]);
  header.payload_bytes =
      GetLittleEndian<std::uint64_t>(&bytes[kPayloadBytesAt]);
  header.signature = GetLittleEndian<std::uint64_t>(&bytes[kSignatureAt]);
  header.group = GetLittleEndian<std::uint32_t>(&bytes[kGroupAt]);
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
