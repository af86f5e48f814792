#include "transports/lent_sends.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "transports/tags.h"

namespace gradientflow {
namespace {

class LentSendsTest : public ::testing::Test {
 protected:
  std::uint64_t Add(int peer, std::uint64_t cookie) {
    return sends_.Add(peer, MessageId(CallTag(0, cookie), 0),
                      {buffer_.data(), buffer_.size(), {}}, {17, 3},
                      {&LentSendsTest::OnEnd, this, cookie});
  }
  static void OnEnd(void* self, std::uint64_t cookie, std::uint32_t,
                    const Status& status) {
    auto& test = *static_cast<LentSendsTest*>(self);
    (status.ok() ? test.well_ : test.failed_).push_back(cookie);
  }

  std::array<std::byte, 24> buffer_{};
  LentSends sends_;
  std::vector<std::uint64_t> well_;
  std::vector<std::uint64_t> failed_;
};

TEST_F(LentSendsTest, TheMessageOfASendEndsIt) {
  const std::uint64_t slot = Add(1, 5);
  const OutMessage message =
      sends_.MessageOf(slot, MessageKind::kData, MessageId(9, 2));
  EXPECT_EQ(message.payload.data, buffer_.data());
  EXPECT_EQ(message.header.payload_bytes, buffer_.size());
  EXPECT_EQ(message.header.signature, 17U);
  EXPECT_EQ(message.header.flags, 3U);
  EXPECT_EQ(message.header.tag, 9U);
  EXPECT_EQ(message.header.group, 2U);
  EXPECT_TRUE(sends_.HasAny(1));
  EXPECT_FALSE(sends_.HasAny(0));
  message.done(Status());
  EXPECT_EQ(well_, (std::vector<std::uint64_t>{5}));
  EXPECT_FALSE(sends_.HasAny(1));
  EXPECT_EQ(Add(1, 6), slot) << "slots are used again";
}

// What a link reports of a send whose peer is gone is not the verdict.
TEST_F(LentSendsTest, ASendThatItsLinkHasLostWaitsForTheVerdict) {
  const std::uint64_t slot = Add(1, 5);
  sends_.MessageOf(slot, MessageKind::kData, MessageId(9, 0))
      .done(Status(StatusCode::kUnavailable, "closed"));
  EXPECT_TRUE(failed_.empty());
  EXPECT_TRUE(sends_.HasAny(1));
  Add(2, 6);
  DoneQueue due;
  sends_.FailAll(Status(StatusCode::kAborted, "enough"), &due);
  due.Poll();
  EXPECT_EQ(failed_, (std::vector<std::uint64_t>{5, 6}));
  EXPECT_FALSE(sends_.HasAny(1));
}

TEST_F(LentSendsTest, AnAnnouncementIsAnsweredOnceAndByItsPeer) {
  const std::uint64_t slot = Add(1, 5);
  EXPECT_FALSE(sends_.Answered(1, slot)) << "nothing is announced";
  const OutMessage message = sends_.Announce(slot);
  EXPECT_EQ(message.header.kind, MessageKind::kAnnounce);
  EXPECT_EQ(message.header.payload_bytes, kAnnouncementBytes);
  message.done(Status());
  EXPECT_TRUE(well_.empty()) << "the payload is still to come";
  EXPECT_TRUE(sends_.AwaitsAnswer(1));
  EXPECT_FALSE(sends_.Answered(2, slot));
  EXPECT_FALSE(sends_.Answered(1, slot + 1));
  EXPECT_TRUE(sends_.Answered(1, slot));
  EXPECT_FALSE(sends_.Answered(1, slot));
  EXPECT_FALSE(sends_.AwaitsAnswer(1));
  sends_.End(slot);
  EXPECT_EQ(well_, (std::vector<std::uint64_t>{5}));
}

}  // namespace
}  // namespace gradientflow
