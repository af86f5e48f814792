#include "transports/wire.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <utility>

namespace gradientflow {
namespace {

using Bytes = std::array<std::byte, kHeaderBytes>;

bool Same(const Header& a, const Header& b) {
  return a.kind == b.kind && a.flags == b.flags && a.tag == b.tag &&
         a.payload_bytes == b.payload_bytes && a.signature == b.signature &&
         a.group == b.group;
}

std::string TroubleWith(const Bytes& bytes) {
  const Result<Header> header = DecodeHeader(bytes);
  if (header.ok()) return "";
  EXPECT_EQ(header.status().code(), StatusCode::kDataLoss);
  return header.status().message();
}

// The least and the most bytes that may follow a header.
std::pair<std::uint64_t, std::uint64_t> LengthsOf(MessageKind kind) {
  switch (static_cast<int>(kind)) {
    case 1:
    case 9:
      return {0, std::uint64_t{1} << 40};
    case 6:
      return {16, 16};
    case 7:
    case 8:
    case 10:
      return {0, 0};
    default:
      return {0, 16384};
  }
}

Header Some(MessageKind kind, std::uint64_t payload_bytes) {
  Header header;
  header.kind = kind;
  header.payload_bytes = payload_bytes;
  return header;
}

TEST(Wire, EveryFieldComesBack) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    Header header;
    header.kind = static_cast<MessageKind>(1 + random() % 10);
    header.flags = static_cast<std::uint32_t>(random()) & kFlagNonfinite;
    header.signature = random();
    header.tag = random();
    const auto [least, most] = LengthsOf(header.kind);
    header.payload_bytes = least + random() % (1 + most - least);
    header.group = static_cast<std::uint32_t>(random());
    const Result<Header> decoded = DecodeHeader(EncodeHeader(header));
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    EXPECT_TRUE(Same(decoded.value(), header));
  }
}

// The example in gradientflow/docs/wire_format.md. A change here needs a new
// version of the format.
TEST(Wire, TheDocumentedExampleHolds) {
  Header header;
  header.flags = 1;
  header.signature = 0x1122334455667788;
  header.tag = 0x0102030405060708;
  header.payload_bytes = 65536;
  header.group = 3;
  const unsigned char expected[] = {
      0x47, 0x46, 0x03, 0x01, 0x01, 0x00, 0x00, 0x00,  //
      0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01,  //
      0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00,  //
      0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,  //
      0x03, 0x00, 0x00, 0x00};
  const Bytes bytes = EncodeHeader(header);
  for (std::size_t i = 0; i < sizeof(expected); ++i) {
    EXPECT_EQ(std::to_integer<int>(bytes[i]), expected[i]) << "byte " << i;
  }
  const unsigned char checksum[] = {0x22, 0x8b, 0x3f, 0xae};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(std::to_integer<int>(bytes[36 + i]), checksum[i]) << i;
  }
}

TEST(Wire, AnySingleFlippedBitIsNoticed) {
  const Bytes good = EncodeHeader(Some(MessageKind::kData, 12345));
  for (std::size_t bit = 0; bit < kHeaderBytes * 8; ++bit) {
    Bytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_NE(TroubleWith(bad), "") << "bit " << bit;
  }
}

TEST(Wire, RandomBytesAreNoHeader) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 10000; ++i) {
    Bytes bytes;
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    if (i % 2 == 0) {  // Past the first checks.
      bytes[0] = std::byte{0x47};
      bytes[1] = std::byte{0x46};
      bytes[2] = std::byte{kWireVersion};
    }
    EXPECT_NE(TroubleWith(bytes), "");
  }
}

TEST(Wire, ErrorsSayWhatWasExpectedAndSeen) {
  Bytes bytes = EncodeHeader(Some(MessageKind::kData, 0));
  bytes[2] = std::byte{9};
  EXPECT_NE(TroubleWith(bytes).find("expected version 3, seen 9"),
            std::string::npos)
      << TroubleWith(bytes);
  const auto trouble = [](const Header& header) {
    return TroubleWith(EncodeHeader(header));
  };
  EXPECT_NE(trouble(Some(static_cast<MessageKind>(12), 0))
                .find("expected a kind from 1 to 11, seen 12"),
            std::string::npos);
  EXPECT_NE(trouble(Some(static_cast<MessageKind>(0), 0)), "");
  Header flags;
  flags.flags = 2;
  EXPECT_NE(trouble(flags).find("seen 0x2"), std::string::npos);
}

TEST(Wire, LengthsAreLimitedByKind) {
  for (int kind = 1; kind <= 10; ++kind) {
    const auto ok = [&](std::uint64_t bytes) {
      return TroubleWith(
                 EncodeHeader(Some(static_cast<MessageKind>(kind), bytes)))
          .empty();
    };
    const auto [least, most] = LengthsOf(static_cast<MessageKind>(kind));
    EXPECT_TRUE(ok(least)) << kind;
    EXPECT_TRUE(ok(most)) << kind;
    EXPECT_FALSE(ok(most + 1)) << kind;
    EXPECT_FALSE(ok(~std::uint64_t{0})) << kind;
    EXPECT_EQ(ok(least - 1), false) << kind;
  }
}

TEST(Wire, AnnouncementsComeBackAndAreOfSomething) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 1000; ++i) {
    const Announcement announcement{1 + random() % kMaxPayloadBytes, random()};
    const auto decoded = DecodeAnnouncement(EncodeAnnouncement(announcement));
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    EXPECT_EQ(decoded.value().bytes, announcement.bytes);
    EXPECT_EQ(decoded.value().send, announcement.send);
  }
  for (const std::uint64_t bytes :
       {std::uint64_t{0}, kMaxPayloadBytes + 1, ~std::uint64_t{0}}) {
    const auto decoded = DecodeAnnouncement(EncodeAnnouncement({bytes, 1}));
    EXPECT_EQ(decoded.status().code(), StatusCode::kDataLoss) << bytes;
  }
}

}  // namespace
}  // namespace gradientflow
