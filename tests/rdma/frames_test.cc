#include "transports/rdma/frames.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

// What travels between two ends is read as it was written, or refused.
namespace gradientflow {
namespace {

bool operator==(const RemotePlace& a, const RemotePlace& b) {
  return a.address == b.address && a.key == b.key;
}

TEST(RdmaFrames, ImmediatesComeBack) {
  for (const auto kind :
       {ImmediateKind::kFrame, ImmediateKind::kPiece, ImmediateKind::kGrant}) {
    for (int lane = 0; lane < kRdmaLanes; ++lane) {
      for (int credits = 0; credits <= kRingSlots; ++credits) {
        for (const bool grant : {false, true}) {
          Immediate sent;
          sent.kind = kind;
          sent.lane = lane;
          sent.credits = credits;
          sent.grant = grant && kind == ImmediateKind::kGrant;
          sent.filled = grant && kind == ImmediateKind::kFrame;
          const auto seen = DecodeImmediate(Encode(sent));
          ASSERT_TRUE(seen.ok()) << seen.status().ToString();
          EXPECT_EQ(seen.value().kind, kind);
          EXPECT_EQ(seen.value().lane, lane);
          EXPECT_EQ(seen.value().credits, credits);
          EXPECT_EQ(seen.value().grant, sent.grant);
          EXPECT_EQ(seen.value().filled, sent.filled);
        }
      }
    }
  }
  for (const std::uint32_t notice : {0U, 1U, 0x2AAAAAAAU, 0x3FFFFFFFU}) {
    Immediate sent;
    sent.kind = ImmediateKind::kPlaced;
    sent.notice = notice;
    const auto seen = DecodeImmediate(Encode(sent));
    ASSERT_TRUE(seen.ok());
    EXPECT_EQ(seen.value().kind, ImmediateKind::kPlaced);
    EXPECT_EQ(seen.value().notice, notice);
  }
}

// Each number is refused or means what would be written as that number.
TEST(RdmaFrames, NoOtherImmediatesAreTaken) {
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 200000; ++i) {
    const std::uint32_t number = random();
    const auto seen = DecodeImmediate(number);
    if (seen.ok()) {
      EXPECT_EQ(Encode(seen.value()), number);
    } else {
      EXPECT_EQ(seen.status().code(), StatusCode::kDataLoss);
      ++refused;
    }
  }
  EXPECT_GT(refused, 100000);
}

TEST(RdmaFrames, GrantsComeBack) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 1000; ++i) {
    const Grant sent = {{random(), static_cast<std::uint32_t>(random())},
                        static_cast<std::uint32_t>(random())};
    std::array<std::byte, kGrantBytes> bytes;
    Encode(sent, bytes.data());
    const Grant seen = DecodeGrant(bytes.data());
    EXPECT_TRUE(seen.there == sent.there);
    EXPECT_EQ(seen.bytes, sent.bytes);
  }
}

RailFrame RandomOffer(std::mt19937_64* random) {
  const auto place = [&] {
    return RemotePlace{(*random)(), static_cast<std::uint32_t>((*random)())};
  };
  RailFrame offer;
  offer.text = std::string((*random)() % 1025, 'x');
  offer.address.number = static_cast<std::uint32_t>((*random)());
  offer.address.psn = static_cast<std::uint32_t>((*random)());
  offer.address.lid = static_cast<std::uint16_t>((*random)());
  offer.address.mtu = 256 << (*random)() % 5;
  offer.ethernet = (*random)() % 2 == 0;
  offer.ring = place();
  offer.grants = place();
  offer.slots = place();
  offer.slot_bytes = (*random)();
  offer.gids.resize((*random)() % (kMostGids + 1));
  for (RdmaGid& gid : offer.gids) {
    gid.type = static_cast<ibv_gid_type>((*random)() % 3);
    for (auto& byte : gid.bytes) byte = static_cast<std::uint8_t>((*random)());
  }
  return offer;
}

void ExpectSame(const RailFrame& a, const RailFrame& b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(a.address.number, b.address.number);
  EXPECT_EQ(a.address.psn, b.address.psn);
  EXPECT_EQ(a.address.lid, b.address.lid);
  EXPECT_EQ(a.address.mtu, b.address.mtu);
  EXPECT_EQ(a.ethernet, b.ethernet);
  EXPECT_TRUE(a.ring == b.ring && a.grants == b.grants && a.slots == b.slots);
  EXPECT_EQ(a.slot_bytes, b.slot_bytes);
  ASSERT_EQ(a.gids.size(), b.gids.size());
  for (std::size_t i = 0; i < a.gids.size(); ++i) {
    EXPECT_EQ(a.gids[i].type, b.gids[i].type);
    EXPECT_EQ(a.gids[i].bytes, b.gids[i].bytes);
  }
}

TEST(RdmaFrames, SetUpFramesComeBack) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 300; ++i) {
    const RailFrame sent = RandomOffer(&random);
    const auto seen = DecodeRailFrame(Encode(sent));
    ASSERT_TRUE(seen.ok()) << seen.status().ToString();
    ExpectSame(seen.value(), sent);
  }
  for (const auto kind : {RailFrame::Kind::kReady, RailFrame::Kind::kPassed,
                          RailFrame::Kind::kFailed}) {
    RailFrame sent;
    sent.kind = kind;
    sent.text = "why";
    const auto seen = DecodeRailFrame(Encode(sent));
    ASSERT_TRUE(seen.ok());
    EXPECT_EQ(seen.value().kind, kind);
    EXPECT_EQ(seen.value().text, "why");
  }
}

TEST(RdmaFrames, ALongReasonIsCut) {
  RailFrame sent;
  sent.kind = RailFrame::Kind::kFailed;
  sent.text = std::string(100000, 'y');
  const auto seen = DecodeRailFrame(Encode(sent));
  ASSERT_TRUE(seen.ok());
  EXPECT_EQ(seen.value().text, sent.text.substr(0, 1024));
}

TEST(RdmaFrames, EveryTruncationAndEveryExcessByteIsRefused) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 20; ++i) {
    const std::string bytes = Encode(RandomOffer(&random));
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      const auto seen = DecodeRailFrame(bytes.substr(0, length));
      ASSERT_FALSE(seen.ok()) << length << " of " << bytes.size();
      EXPECT_EQ(seen.status().code(), StatusCode::kDataLoss);
    }
    EXPECT_FALSE(DecodeRailFrame(bytes + '\0').ok());
  }
}

TEST(RdmaFrames, OtherVersionsKindsAndTypesAreRefused) {
  RailFrame offer;
  offer.gids.resize(1);
  const std::string good = Encode(offer);
  ASSERT_TRUE(DecodeRailFrame(good).ok());
  const auto with = [&](std::size_t at, char value) {
    std::string bytes = good;
    bytes[at] = value;
    return DecodeRailFrame(bytes);
  };
  EXPECT_FALSE(with(0, 1).ok());
  for (const int kind : {0, 5, 255}) {
    EXPECT_FALSE(with(1, static_cast<char>(kind)).ok()) << kind;
  }
  EXPECT_FALSE(with(good.size() - 17, 3).ok()) << "a type of GID";
  EXPECT_FALSE(with(good.size() - 18, 9).ok()) << "a number of GIDs";
  EXPECT_NE(with(0, 1).status().message().find(
                "expected an RDMA set-up frame of version 2, seen"),
            std::string::npos);
}

}  // namespace
}  // namespace gradientflow
