#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "tests/transports/tcp_pair.h"
#include "transports/fabric.h"
#include "transports/poller.h"
#include "transports/tcp/tcp_link.h"
#include "transports/wire.h"

// What a fabric makes of a peer that says well-formed hellos and then anything.
namespace gradientflow {
namespace {

constexpr Tag kTag = CallTag(0, 1);

class HostilePeer : public ::testing::Test {
 protected:
  explicit HostilePeer(std::size_t early_bytes = 8000)
      : fabric_(0, 2, clock_, Poller::Create().value(), Config(early_bytes)) {
    TcpLinkArgs args;
    args.peer = 1;
    args.poller = &fabric_.poller();
    args.events = &fabric_;
    for (int lane = 0; lane < 2; ++lane) {
      auto made = tcp_test::MakeConnection("127.0.0.1:0");
      args.lanes.push_back(std::move(made->one));
      raw_.push_back(std::move(made->other));
    }
    args.address = PeerAddress(args.lanes[0]).ToString();
    address_ = "rank 1 (" + args.address;
    std::vector<std::unique_ptr<Link>> links(2);
    links[1] = TcpLink::Create(std::move(args)).value();
    fabric_.Connect(std::move(links));
  }
  static FabricOptions Config(std::size_t early_bytes) {
    FabricOptions options;
    options.heartbeat_timeout = std::chrono::milliseconds(300);
    options.early_bytes = early_bytes;
    return options;
  }

  void Write(int lane, const void* data, std::size_t bytes) {
    EXPECT_EQ(::send(raw_[lane].fd(), data, bytes, MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes));
  }
  void WriteHeader(int lane, Tag tag, std::uint64_t payload_bytes,
                   MessageKind kind = MessageKind::kData) {
    Header header;
    header.kind = kind;
    header.tag = tag;
    header.payload_bytes = payload_bytes;
    const auto bytes = EncodeHeader(header);
    Write(lane, bytes.data(), bytes.size());
  }
  void Receive(Tag tag) {
    fabric_.Recv(1, tag, {landing_.data(), landing_.size(), {}}, 0,
                 {&HostilePeer::OnDone, this, 0});
  }
  static void OnDone(void* self, std::uint64_t, std::uint32_t,
                     const Status& status) {
    auto& test = *static_cast<HostilePeer*>(self);
    ++test.dones_;
    test.received_ = status;
  }
  // Drives like a rank that waits, until the receive ends.
  void Drive() {
    const Clock::Time give_up = clock_.Now() + std::chrono::seconds(10);
    while (dones_ == 0 && clock_.Now() < give_up) {
      fabric_.Poll();
      fabric_.Tick(true);
      fabric_.Wait(std::chrono::milliseconds(5));
    }
  }
  void ExpectEnd(StatusCode code, const std::string& what) {
    Drive();
    EXPECT_EQ(dones_, 1);
    EXPECT_EQ(received_.code(), code) << received_.ToString();
    EXPECT_NE(received_.message().find(address_), std::string::npos)
        << received_.ToString();
    EXPECT_NE(received_.message().find(what), std::string::npos)
        << received_.ToString();
  }

  const SteadyClock clock_;
  std::vector<Socket> raw_;
  std::string address_;
  std::array<std::byte, 64> landing_ = {};
  int dones_ = 0;
  Status received_;
  Fabric fabric_;
};

TEST_F(HostilePeer, NoiseInsteadOfAHeaderIsDataLoss) {
  Receive(kTag);
  const std::string noise(500, 'x');
  Write(1, noise.data(), noise.size());
  ExpectEnd(StatusCode::kDataLoss, "magic");
}

TEST_F(HostilePeer, ControlMessageOfImpossibleLengthIsDataLoss) {
  Receive(kTag);
  WriteHeader(0, 0, kMaxControlBytes + 1, MessageKind::kPing);
  ExpectEnd(StatusCode::kDataLoss, "at most 16384 bytes");
}

TEST_F(HostilePeer, LengthThatIsNotAwaitedIsAMismatch) {
  Receive(kTag);
  WriteHeader(1, kTag, landing_.size() + 8);
  ExpectEnd(StatusCode::kInvalidArgument, "sent 72 bytes, rank 0 expected 64");
}

TEST_F(HostilePeer, HugeLengthThatNobodyAskedForIsDataLoss) {
  Receive(kTag);
  WriteHeader(1, CallTag(0, 2), std::uint64_t{1} << 39);
  ExpectEnd(StatusCode::kDataLoss,
            "sends 549755813888 bytes unasked, expected at most 4000");
}

TEST_F(HostilePeer, MoreThanItsCreditIsDataLoss) {
  Receive(kTag);
  const std::array<char, 90> payload = {};
  for (std::uint32_t call = 2; call < 60; ++call) {
    WriteHeader(1, CallTag(0, call), payload.size());
    Write(1, payload.data(), payload.size());
  }
  ExpectEnd(StatusCode::kDataLoss, "sends 90 bytes unasked");
  EXPECT_LE(fabric_.held_bytes(1), 4000U);
}

TEST_F(HostilePeer, AnnouncementOfImpossibleLengthIsDataLoss) {
  Receive(kTag);
  WriteHeader(1, CallTag(0, 2), kAnnouncementBytes, MessageKind::kAnnounce);
  const auto announcement = EncodeAnnouncement({0, 1});
  Write(1, announcement.data(), announcement.size());
  ExpectEnd(StatusCode::kDataLoss, "expected a message of 1 to");
}

TEST_F(HostilePeer, PayloadThatWasNotCalledForIsDataLoss) {
  Receive(kTag);
  WriteHeader(1, kTag, landing_.size(), MessageKind::kPayload);
  ExpectEnd(StatusCode::kDataLoss, "has not called for");
}

TEST_F(HostilePeer, AnswersAmongDataAreDataLoss) {
  Receive(kTag);
  WriteHeader(1, 0, 0, MessageKind::kCredit);
  ExpectEnd(StatusCode::kDataLoss, "control messages on lane 0 only");
}

TEST_F(HostilePeer, SameTagTwiceIsDataLoss) {
  Receive(kTag);
  const std::array<char, 8> payload = {};
  for (int i = 0; i < 2; ++i) {
    WriteHeader(1, CallTag(0, 2), payload.size());
    Write(1, payload.data(), payload.size());
  }
  ExpectEnd(StatusCode::kDataLoss, "twice");
}

TEST_F(HostilePeer, EndInMidMessageIsUnavailable) {
  Receive(kTag);
  WriteHeader(1, kTag, landing_.size());
  Write(1, "abc", 3);
  raw_.clear();
  ExpectEnd(StatusCode::kUnavailable, "mid-message");
}

TEST_F(HostilePeer, SilenceIsDeadlineExceeded) {
  Receive(kTag);
  ExpectEnd(StatusCode::kDeadlineExceeded, "silent");
}

// Reading its bytes one by one is no sign of life.
TEST_F(HostilePeer, DataIsNoSignOfLife) {
  Receive(kTag);
  const std::array<char, 16> announcement = {1};
  for (std::uint32_t call = 2; call < 60; ++call) {
    WriteHeader(1, CallTag(0, call), announcement.size(),
                MessageKind::kAnnounce);
    Write(1, announcement.data(), announcement.size());
  }
  const Clock::Time begin = clock_.Now();
  ExpectEnd(StatusCode::kDeadlineExceeded, "silent");
  EXPECT_LT(clock_.Now() - begin, std::chrono::seconds(2));
}

// It grants so much credit that data fills the connections.
class PeerThatDoesNotRead : public HostilePeer {
 protected:
  PeerThatDoesNotRead() : HostilePeer(std::size_t{1} << 30) {}
};

TEST_F(PeerThatDoesNotRead, HeartbeatsGoOutPastWhatThePeerDoesNotRead) {
  const std::vector<std::byte> large(std::size_t{64} << 10);
  for (std::uint32_t call = 0; call < 2000; ++call) {
    fabric_.Send(1, CallTag(0, call), {large.data(), large.size(), {}}, {}, {});
  }
  std::array<std::byte, kHeaderBytes> bytes;
  const Clock::Time give_up = clock_.Now() + std::chrono::seconds(10);
  ssize_t got = 0;
  while (got <= 0 && clock_.Now() < give_up) {
    fabric_.Tick(false);
    fabric_.Poll();
    got = ::recv(raw_[0].fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  }
  ASSERT_EQ(got, static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(DecodeHeader(bytes).value().kind, MessageKind::kPong);
}

TEST_F(HostilePeer, AbortWithACodeThatDoesNotExistIsAborted) {
  Receive(kTag);
  WriteHeader(0, 4711, 3, MessageKind::kAbort);
  Write(0, "why", 3);
  Drive();
  EXPECT_EQ(dones_, 1);
  EXPECT_EQ(received_.code(), StatusCode::kAborted) << received_.ToString();
  EXPECT_EQ(received_.message(), "why");
}

TEST_F(HostilePeer, ByeWithoutWhatIsAwaitedIsADeparture) {
  Receive(kTag);
  WriteHeader(0, 0, 0, MessageKind::kBye);
  // The link closes once it has answered.
  fabric_.Poll();
  raw_.clear();
  ExpectEnd(StatusCode::kUnavailable, "has left the job");
}

TEST_F(HostilePeer, ByeWithAnAnnouncedSendIsADeparture) {
  const std::vector<std::byte> data(5000);
  fabric_.Send(1, kTag, {data.data(), data.size(), {}}, {},
               {&HostilePeer::OnDone, this, 0});
  for (int i = 0; i < 100; ++i) fabric_.Poll();
  EXPECT_EQ(dones_, 0);
  WriteHeader(0, 0, 0, MessageKind::kBye);
  fabric_.Poll();
  raw_.clear();
  ExpectEnd(StatusCode::kUnavailable, "has left the job");
}

TEST_F(PeerThatDoesNotRead, ByeWithASendOnItsWayIsADeparture) {
  // More than the connections can buffer, so that it cannot all be sent.
  std::vector<std::byte> large(std::size_t{64} << 20);
  fabric_.Send(1, kTag, {large.data(), large.size(), {}}, {},
               {&HostilePeer::OnDone, this, 0});
  for (int i = 0; i < 100; ++i) fabric_.Poll();
  WriteHeader(0, 0, 0, MessageKind::kBye);
  fabric_.Poll();
  raw_.clear();
  ExpectEnd(StatusCode::kUnavailable, "has left the job");
}

}  // namespace
}  // namespace gradientflow
