#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/fd.h"
#include "tests/transports/spsc_test_util.h"
#include "transports/shm/fifo.h"
#include "transports/shm/shm_arena.h"
#include "transports/shm/shm_link.h"
#include "transports/wire.h"

// A good link whose peer is this test: it owns the other ends of both FIFOs
// and of the socket, and does not keep to the rules.
namespace gradientflow {
namespace {

using testing::Endpoint;

constexpr std::size_t kFifo = 4096;

class HostilePeer : public ::testing::Test {
 protected:
  void SetUp() override {
    mine_ = std::move(ShmArena::Create(std::size_t{1} << 20)).value();
    peers_ = std::move(ShmArena::Create(std::size_t{1} << 20)).value();
    mine_->SetSelf(0);
    ASSERT_TRUE(mine_->AddMember(1, peers_->mapping()).ok());
    int sockets[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    socket_ = Fd(sockets[1]);
    ShmLinkArgs args;
    args.peer = 1;
    args.address = "pid 1";
    args.socket = Fd(sockets[0]);
    args.in = in_ = Fifo(*mine_, 0, *mine_);
    args.out = out_ = Fifo(*peers_, 1, *mine_);
    args.arena = mine_;
    args.poller = rank_.poller();
    args.events = &rank_;
    std::vector<std::unique_ptr<Link>> links(2);
    links[1] = std::move(ShmLink::Create(std::move(args))).value();
    rank_.Take(std::move(links));
  }
  static FifoMemory Fifo(ShmArena& owner, int rank, const ShmArena& viewer) {
    const BufferView view = owner.AllocateFifo(kFifo).value();
    return viewer.FifoAt(rank, owner.OffsetOf(view.data), kFifo).value();
  }
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

  std::shared_ptr<ShmArena> mine_;
  std::shared_ptr<ShmArena> peers_;
  FifoMemory in_;
  FifoMemory out_;
  Fd socket_;
  Endpoint rank_;
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

TEST_F(HostilePeer, GarbageForAHeaderEndsTheLink) {
  FifoWriter writer(in_);
  writer.Write(testing::Pattern(99, 64));
  writer.Publish();
  ExpectDown(StatusCode::kDataLoss);
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
