#include "transports/tcp/lane_writer.h"

#include <gtest/gtest.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

namespace gradientflow {
namespace {

constexpr std::size_t kFew = 512;

class LaneWriterTest : public ::testing::Test {
 protected:
  // Pushes a message whose payload is `bytes` random bytes.
  void Push(std::size_t bytes) {
    std::vector<std::byte>& payload = payloads_.emplace_back(bytes);
    for (std::byte& byte : payload) byte = static_cast<std::byte>(random_());
    Header header;
    header.tag = payloads_.size();
    header.payload_bytes = bytes;
    writer_.Push({header,
                  {payload.data(), bytes, {}},
                  {&LaneWriterTest::OnEnd, this, header.tag}});
    const auto encoded = EncodeHeader(header);
    pushed_.insert(pushed_.end(), encoded.begin(), encoded.end());
    pushed_.insert(pushed_.end(), payload.begin(), payload.end());
  }

  LaneWriter::Gathered Gather(std::size_t most_bytes) {
    return writer_.Gather(room_, most_bytes);
  }

  // Appends the first `bytes` of what was gathered to what has left.
  void Leave(const LaneWriter::Gathered& next, std::size_t bytes) {
    std::size_t left = bytes;
    for (const iovec& piece : next.pieces) {
      const auto* data = static_cast<const std::byte*>(piece.iov_base);
      const std::size_t taken = std::min(left, piece.iov_len);
      gone_.insert(gone_.end(), data, data + taken);
      left -= taken;
    }
    ASSERT_EQ(left, 0U);
    writer_.Wrote(bytes);
  }

  static void OnEnd(void* self, std::uint64_t cookie, std::uint32_t,
                    const Status&) {
    static_cast<LaneWriterTest*>(self)->ended_.push_back(cookie);
  }

  std::minstd_rand random_{7};
  std::array<iovec, 9> room_;
  std::deque<std::vector<std::byte>> payloads_;
  std::vector<std::byte> pushed_;
  std::vector<std::byte> gone_;
  std::vector<std::uint64_t> ended_;
  LaneWriter writer_;
};

TEST_F(LaneWriterTest, FewBytesAreOnePiece) {
  Push(1);
  Push(0);
  Push(kFew - 3 * kHeaderBytes - 1);
  const LaneWriter::Gathered next = Gather(1 << 20);
  ASSERT_EQ(next.pieces.size(), 1U);
  EXPECT_EQ(next.bytes, kFew);
  Leave(next, next.bytes);
  EXPECT_EQ(gone_, pushed_);
  EXPECT_TRUE(writer_.empty());
}

TEST_F(LaneWriterTest, MoreBytesAreNotCopied) {
  Push(1);
  Push(kFew - 2 * kHeaderBytes);
  const LaneWriter::Gathered next = Gather(1 << 20);
  EXPECT_EQ(next.bytes, kFew + 1);
  ASSERT_EQ(next.pieces.size(), 4U);
  EXPECT_EQ(next.pieces[1].iov_base, payloads_[0].data());
  EXPECT_EQ(next.pieces[3].iov_base, payloads_[1].data());
}

TEST_F(LaneWriterTest, GoesOnWhereAConnectionStopped) {
  Push(kFew + 9);
  Leave(Gather(1 << 20), kHeaderBytes - 3);
  const LaneWriter::Gathered rest = Gather(1 << 20);
  EXPECT_EQ(rest.bytes, kFew + 12);
  Leave(rest, kFew + 2);
  // The last bytes of a large payload are few, and already in one piece.
  const LaneWriter::Gathered last = Gather(1 << 20);
  ASSERT_EQ(last.pieces.size(), 1U);
  EXPECT_EQ(last.pieces[0].iov_base, payloads_[0].data() + kFew - 1);
  Leave(last, 10);
  EXPECT_EQ(gone_, pushed_);
}

TEST_F(LaneWriterTest, RandomWritesLoseNothingAndKeepTheOrder) {
  std::vector<std::uint64_t> expected;
  for (std::uint64_t tag = 1; tag <= 400; ++tag) {
    Push(random_() % 3 == 0 ? random_() % 3000 : random_() % 40);
    expected.push_back(tag);
    while (!writer_.empty() && random_() % 4 != 0) {
      const std::size_t most = 1 + random_() % 2500;
      const LaneWriter::Gathered next = Gather(most);
      ASSERT_GT(next.bytes, 0U);
      ASSERT_LE(next.bytes, most);
      Leave(next, random_() % (next.bytes + 1));
      Done done;
      while (writer_.PopWritten(&done)) done(Status());
    }
  }
  while (!writer_.empty()) {
    const LaneWriter::Gathered next = Gather(1 << 20);
    Leave(next, next.bytes);
  }
  Done done;
  while (writer_.PopWritten(&done)) done(Status());
  EXPECT_EQ(gone_, pushed_);
  EXPECT_EQ(ended_, expected);
}

}  // namespace
}  // namespace gradientflow
