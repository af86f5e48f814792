#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/secret.h"
#include "tests/base/heap_count.h"
#include "tests/rdma/fake_verbs.h"
#include "tests/rdma/scripted_peer.h"
#include "transports/rdma/rdma_endpoint.h"

// What a message costs: calls of verbs, completions, allocations.
namespace gradientflow::testing {
namespace {

// ---- Calls

class RdmaCounts : public ::testing::Test {
 protected:
  void SetUp() override {
    peer_.SetUp();
    before_ = peer_.fake.stats(0);
  }
  FakeVerbsStats Since() const {
    FakeVerbsStats now = peer_.fake.stats(0);
    now.post_calls -= before_.post_calls;
    now.signalled -= before_.signalled;
    now.writes -= before_.writes;
    now.writes_with_imm -= before_.writes_with_imm;
    return now;
  }
  ScriptedPeer peer_{std::size_t{1} << 20, 150};
  FakeVerbsStats before_;
};

TEST_F(RdmaCounts, MessagesThatLeaveTogetherArePostedAndSignalledOnce) {
  for (std::uint64_t i = 0; i < 10; ++i) peer_.owner.Send(1, i, 100 * i);
  peer_.Settle();
  EXPECT_EQ(Since().post_calls, 1U);
  EXPECT_EQ(Since().signalled, 1U);
  EXPECT_EQ(Since().writes_with_imm, 10U);
  EXPECT_EQ(Since().writes, 0U);
  EXPECT_EQ(peer_.owner.sent.size(), 10U);
}

TEST_F(RdmaCounts, LongDataAndItsNumberAreTwoRequests) {
  const BufferView here = peer_.places->slots();
  for (const std::size_t bytes : {8192U, 8193U}) {
    const ConstBufferView piece = {here.data, bytes, {}};
    peer_.places->Put(1, {&piece, 1}, peer_.places->SlotsOf(1), 1, {});
    peer_.Settle();
    EXPECT_EQ(Since().writes_with_imm, bytes == 8192 ? 1U : 2U);
    EXPECT_EQ(Since().writes, bytes == 8192 ? 0U : 1U);
  }
  EXPECT_EQ(Since().post_calls, 2U);
}

// More than the send queue holds: what does not fit waits, the rank may sleep
// meanwhile, and the completions wake it.
TEST_F(RdmaCounts, AFullSendQueueWaitsForCompletions) {
  constexpr std::uint32_t kPuts = 150;
  const ConstBufferView piece = {peer_.places->slots().data, 64, {}};
  for (std::uint32_t i = 0; i < kPuts; ++i) {
    peer_.places->Put(1, {&piece, 1}, peer_.places->SlotsOf(1), i, {});
  }
  while (peer_.owner.PollOnce()) {
  }
  EXPECT_EQ(Since().writes_with_imm, QueuePair::kDepth - 1U)
      << "a place is kept for a number";
  EXPECT_EQ(peer_.link->queued_messages(), kPuts - QueuePair::kDepth + 1);
  ASSERT_TRUE(peer_.link->PrepareToSleep());
  while (peer_.fake.Pending() > 0) peer_.fake.Step();
  EXPECT_TRUE(peer_.owner.poller()->Poll(std::chrono::seconds(10)));
  peer_.Settle();
  EXPECT_EQ(Since().writes_with_imm, kPuts);
  EXPECT_EQ(peer_.link->queued_messages(), 0U);
  const std::vector<ibv_wc> seen = peer_.end->Poll();
  ASSERT_EQ(seen.size(), kPuts);
  for (std::uint32_t i = 0; i < kPuts; ++i) {
    EXPECT_EQ(DecodeImmediate(ntohl(seen[i].imm_data)).value().notice, i);
  }
}

// ---- Allocations

// The functions of the fake devices, whose allocations are not counted.
VerbsApi real_api;
template <auto kMember>
struct Quiet;
template <typename R, typename... Args, R (*VerbsApi::*kMember)(Args...)>
struct Quiet<kMember> {
  static R Call(Args... args) {
    const Uncounted pause;
    return (real_api.*kMember)(args...);
  }
};
template <auto... kMembers>
std::shared_ptr<const VerbsApi> WithoutCount(const VerbsApi& api) {
  real_api = api;
  auto quiet = std::make_shared<VerbsApi>(api);
  ((quiet.get()->*kMembers = Quiet<kMembers>::Call), ...);
  return quiet;
}

// An owner that allocates nothing: it sends whenever something has left, and
// takes whatever comes into one place.
class Streamer final : public LinkEvents {
 public:
  Streamer() : poller(std::move(Poller::Create()).value()) {}

  void Send(std::size_t bytes) {
    OutMessage message;
    message.header.payload_bytes = bytes;
    message.payload = {out_.data(), bytes, {}};
    message.done = {[](void* self, std::uint64_t, std::uint32_t,
                       const Status&) { ++*static_cast<std::size_t*>(self); },
                    &sent, 0};
    link->Send(static_cast<int>(sent % 9), message);
  }
  Result<Landing> OnHeader(int, int lane, const Header&) override {
    return Landing{in_[static_cast<std::size_t>(lane)].data(), false};
  }
  void OnMessage(int, int, const Header&) override { ++received; }
  void OnDown(int, const Status& why) override {
    ADD_FAILURE() << why.ToString();
  }
  void PollAll() {
    link->Poll();
    poller->Poll(std::chrono::nanoseconds(0));
  }

  std::unique_ptr<Poller> poller;
  std::unique_ptr<Link> link;
  std::size_t sent = 0;
  std::size_t received = 0;

 private:
  std::array<std::byte, 100000> out_ = {};
  std::array<std::array<std::byte, 100000>, 9> in_ = {};
};

class NoticeCount final : public RemotePlaces::Sink {
 public:
  void OnNotice(int, std::uint32_t) override { ++count; }
  std::size_t count = 0;
};

// Two ranks, of which what rank 0 does is counted: it sends short and long
// messages, puts, receives as much, and sleeps now and then.
class RdmaAllocations : public ::testing::Test {
 protected:
  RdmaAllocations() : fake_(2) {
    const auto quiet =
        WithoutCount<&VerbsApi::post_send, &VerbsApi::post_recv,
                     &VerbsApi::poll_cq, &VerbsApi::req_notify_cq,
                     &VerbsApi::get_cq_event>(*fake_.api(0));
    TransportOptions options;
    options.socket_ifname = "lo";
    options.placed_slot_bytes = 65536;
    options.placed_notices = 16;
    for (int r = 0; r < 2; ++r) {
      options.rank = r;
      endpoints_[static_cast<std::size_t>(r)] =
          OpenRdma(options, r == 0 ? quiet : fake_.api(1)).value();
    }
    std::thread other([&] { Connect(1); });
    Connect(0);
    other.join();
    for (const auto& endpoint : endpoints_) {
      endpoint->places()->SetSink(&notices_);
    }
  }

  // The `i`-th exchange. Returns how often rank 0 has allocated memory.
  std::uint64_t Exchange(std::size_t i) {
    const std::size_t bytes = i % 7 == 0 ? 90000 : i * 37 % 4000;
    sides_->back().Send(bytes);
    sides_->back().Send(1);
    std::uint64_t counted = Counted([&] { Send(bytes); });
    ++puts_;
    while (sides_->front().received < 2 * i + 2 ||
           sides_->back().received < 2 * i + 2 || notices_.count < puts_) {
      counted += Counted([&] {
        sides_->front().PollAll();
        sides_->front().link->PrepareToSleep();
        sides_->front().link->WakeUp();
      });
      sides_->back().PollAll();
    }
    return counted;
  }

 private:
  void Connect(int r) {
    Streamer& side = (*sides_)[static_cast<std::size_t>(r)];
    ConnectArgs args;
    args.rank = r;
    args.size = 2;
    args.addresses = {endpoints_[0]->address(), endpoints_[1]->address()};
    args.secret = HmacSha256("4711", "");
    args.clock = &clock_;
    args.deadline = clock_.Now() + std::chrono::seconds(20);
    args.poller = side.poller.get();
    args.events = &side;
    auto links = endpoints_[static_cast<std::size_t>(r)]->Connect(args);
    side.link = std::move(links.value()[static_cast<std::size_t>(1 - r)]);
  }
  void Send(std::size_t bytes) {
    sides_->front().Send(bytes);
    sides_->front().Send(2);
    RemotePlaces& places = *endpoints_[0]->places();
    const ConstBufferView piece = {places.slots().data, bytes % 9000, {}};
    places.Put(1, {&piece, 1}, places.SlotsOf(1), 1, {});
  }
  template <typename Do>
  static std::uint64_t Counted(const Do& what) {
    const std::uint64_t before = HeapAllocations();
    what();
    return HeapAllocations() - before;
  }

  const SteadyClock clock_;
  FakeVerbs fake_;
  std::array<std::unique_ptr<Endpoint>, 2> endpoints_;
  std::unique_ptr<std::array<Streamer, 2>> sides_ =
      std::make_unique<std::array<Streamer, 2>>();
  NoticeCount notices_;
  std::size_t puts_ = 0;
};

TEST_F(RdmaAllocations, ThereAreNoneOnceTheQueuesAreAsLongAsTheyGet) {
  constexpr std::size_t kWarmUp = 200;
  std::uint64_t allocations = 0;
  for (std::size_t i = 0; i < 1000; ++i) {
    const std::uint64_t now = Exchange(i);
    if (i >= kWarmUp) allocations += now;
  }
  EXPECT_EQ(allocations, 0U);
  EXPECT_GT(HeapAllocations(), 0U) << "is anything counted?";
}

}  // namespace
}  // namespace gradientflow::testing
