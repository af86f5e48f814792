#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/fd.h"
#include "tests/transports/link_owner.h"
#include "tests/transports/raw_shm_peer.h"
#include "transports/shm/fifo.h"
#include "transports/wire.h"

// A good link whose peer is this test: the test owns the other ends of both
// FIFOs and of the socket, and breaks the rules.
namespace gradientflow {
namespace {

using testing::LinkOwner;

constexpr std::size_t kFifo = testing::RawShmPeer::kFifo;

class HostilePeer : public ::testing::Test {
 protected:
  void Settle() {
    while (rank_.PollOnce()) {
    }
  }
  void ExpectDown(StatusCode code) {
    Settle();
    ASSERT_EQ(rank_.down.size(), 1U);
    EXPECT_EQ(rank_.down[0].second.code(), code)
        << rank_.down[0].second.ToString();
    EXPECT_NE(rank_.down[0].second.message().find("rank 1 (pid 1"),
              std::string::npos)
        << rank_.down[0].second.ToString();
  }

  LinkOwner rank_;
  testing::RawShmPeer peer_{"shm", &rank_};
  FifoMemory& in_ = peer_.in;
  FifoMemory& out_ = peer_.out;
  Fd& socket_ = peer_.socket;
};

TEST_F(HostilePeer, AnImpossibleHeadEndsTheLink) {
  in_.control->head.store(kFifo + 1);
  ExpectDown(StatusCode::kDataLoss);
}

TEST_F(HostilePeer, AHeadThatGoesBackEndsTheLink) {
  FifoWriter writer(in_);
  writer.Write(EncodeHeader(Header{}));
  writer.Publish();
  Settle();
  EXPECT_EQ(rank_.messages, 1U);
  in_.control->head.store(8);
  ExpectDown(StatusCode::kDataLoss);
}

TEST_F(HostilePeer, AnImpossibleTailEndsTheLinkAndItsSends) {
  rank_.Send(1, 1, 100000);
  rank_.PollOnce();
  out_.control->tail.store(std::uint64_t{1} << 63);
  ExpectDown(StatusCode::kDataLoss);
  ASSERT_EQ(rank_.sent.size(), 1U);
  EXPECT_EQ(rank_.sent[0].second.code(), StatusCode::kDataLoss);
}

TEST_F(HostilePeer, BrokenCountersKeepNobodyAsleep) {
  in_.control->head.store(~std::uint64_t{0});
  EXPECT_FALSE(rank_.to(1).PrepareToSleep());
  ExpectDown(StatusCode::kDataLoss);
}

TEST_F(HostilePeer, OverwritingTheLinksOwnCountersChangesNothing) {
  FifoWriter writer(in_);
  for (int round = 0; round < 500; ++round) {
    in_.control->tail.store(round * 977);
    writer.Write(EncodeHeader(Header{}));
    writer.Publish();
    Settle();
    ASSERT_EQ(rank_.messages, round + 1U);
    ASSERT_TRUE(rank_.down.empty());
    in_.control->tail.store(writer.unpublished() + 32U * (round + 1U));
    ASSERT_TRUE(writer.Refresh().ok());
  }
}

TEST_F(HostilePeer, RandomCountersAndBytesNeverOverrun) {
  std::mt19937_64 random(17);
  for (int round = 0; round < 200; ++round) {
    const auto bytes = testing::Pattern(random(), kFifo);
    std::copy(bytes.begin(), bytes.end(), in_.data);
    const auto good =
        EncodeHeader(Header{MessageKind::kData, 0, 1, random() % 10000, 0});
    std::copy(good.begin(), good.end(), in_.data);
    in_.control->head.store(random() % (kFifo + 8));
    out_.control->tail.store(random() % 3 ? 0 : random());
    out_.control->consumer_sleeps.store(static_cast<std::uint32_t>(random()));
    rank_.Send(1, 3, random() % 9000);
    Settle();
    if (!rank_.down.empty()) break;
  }
  EXPECT_EQ(rank_.down.size(), 1U);
  EXPECT_TRUE(rank_.received.size() <= 1U);
}

TEST_F(HostilePeer, ADoorbellThatIsNeverReadBlocksNobody) {
  FifoReader reader(out_);
  for (int i = 0; i < 20000; ++i) {
    out_.control->consumer_sleeps.store(kRingForData);
    rank_.Send(1, 1, 0);
    rank_.PollOnce();
    ASSERT_TRUE(reader.Refresh().ok());
    std::vector<std::byte> bytes(reader.available());
    reader.Read(bytes);
    reader.Release();
  }
  EXPECT_EQ(rank_.sent.size(), 20000U);
  EXPECT_TRUE(rank_.down.empty());
}

TEST_F(HostilePeer, RingingWithoutSendingMovesNothing) {
  const std::vector<char> rings(4096, 1);
  ASSERT_EQ(::send(socket_.get(), rings.data(), rings.size(), 0), 4096);
  Settle();
  EXPECT_TRUE(rank_.down.empty());
  EXPECT_EQ(rank_.messages, 0U);
  socket_.Reset();
  ExpectDown(StatusCode::kUnavailable);
}

}  // namespace
}  // namespace gradientflow
