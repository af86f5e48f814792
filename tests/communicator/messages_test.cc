#include "gradientflow/communicator/messages.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/communicator/fabrics.h"
#include "tests/transports/fabric_ranks.h"
#include "transports/fabric.h"
#include "transports/link_source.h"
#include "transports/wire.h"

// Which receive gets which message, and what becomes of those that get none.
namespace gradientflow::testing {
namespace {

class MessagesTest : public ::testing::Test {
 protected:
  MessagesTest() {
    for (int r = 0; r < kRanks; ++r) {
      messages_.push_back(std::make_unique<Messages>(ranks_.fabric(r)));
    }
  }
  Messages& at(int rank) { return *messages_[static_cast<std::size_t>(rank)]; }
  const CallGroup& group(int rank) { return ranks_.executor(rank).group(); }

  void Poll(int rounds = 50) {
    for (int i = 0; i < rounds; ++i) {
      ranks_.Poll(1);
      for (auto& messages : messages_) {
        if (messages != nullptr) messages->Poll();
      }
    }
  }
  void Send(int from, int to, std::uint32_t tag, std::string text) {
    sent_.push_back(std::move(text));
    ASSERT_TRUE(
        at(from).Send(group(from), to, tag, View(sent_.back()), {}).ok());
  }

  void Leave(int rank) {
    messages_[static_cast<std::size_t>(rank)].reset();
    ranks_.Leave(rank);
  }

  // A receive on rank 0.
  struct Receive {
    std::string text = std::string(5, '?');
    int source = -7;
    TransferEnding ended;
  };
  Receive& Recv(int peer, std::uint32_t tag) {
    receives_.emplace_back();
    Receive& receive = receives_.back();
    EXPECT_TRUE(at(0)
                    .Recv(group(0), peer, tag, Room(&receive.text),
                          &receive.source, receive.ended.done())
                    .ok());
    return receive;
  }

  static constexpr int kRanks = 3;
  std::deque<std::string> sent_;
  std::deque<Receive> receives_;
  // What is in flight ends with the fabrics, in their destructors.
  std::vector<std::unique_ptr<Messages>> messages_;
  Fabrics ranks_{kRanks};
};

TEST_F(MessagesTest, OfOnePeerAndTagArriveInTheOrderOfTheCalls) {
  std::mt19937 random(5);
  // On both sides of where the sender's numbers end.
  for (const std::uint32_t tag : {3U, kNumberedTags - 1, kNumberedTags + 3}) {
    std::vector<std::string> expected;
    std::vector<Receive*> seen;
    while (expected.size() < 60) {
      if (random() % 2 == 0 || seen.size() >= expected.size() + 5) {
        expected.push_back(std::to_string(10000 + expected.size()));
        Send(1, 0, tag, expected.back());
      } else {
        seen.push_back(&Recv(1, tag));
      }
      if (random() % 4 == 0) Poll(1);
    }
    while (seen.size() < expected.size()) seen.push_back(&Recv(1, tag));
    Poll();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(seen[i]->ended.times, 1) << "message " << i << " of " << tag;
      EXPECT_EQ(seen[i]->text, expected[i]) << "tag " << tag;
      EXPECT_EQ(seen[i]->source, 1);
    }
    for (std::size_t i = expected.size(); i < seen.size(); ++i) {
      Send(1, 0, tag, "spare");
    }
    Poll();
  }
  EXPECT_EQ(at(0).in_flight(), 0U);
  EXPECT_EQ(at(1).in_flight(), 0U);
}

TEST_F(MessagesTest, FromAnyRankAreTakenAsTheyCome) {
  Receive& first = Recv(kAnyRank, 4);
  Receive& second = Recv(kAnyRank, 4);
  Send(1, 0, 5, "other");  // Another tag.
  Poll();
  EXPECT_EQ(first.ended.times, 0);
  Send(2, 0, 4, "two..");
  Poll();
  EXPECT_EQ(first.text, "two..");
  EXPECT_EQ(first.source, 2);
  EXPECT_EQ(second.ended.times, 0);
  Send(1, 0, 4, "one..");
  Poll();
  EXPECT_EQ(second.text, "one..");
  EXPECT_EQ(second.source, 1);
}

// It might take what the receive before it is to have.
TEST_F(MessagesTest, ReceiveBehindOneFromAnyRankWaitsForItsTurn) {
  Receive& any = Recv(kAnyRank, 4);
  Receive& from_one = Recv(1, 4);
  Send(1, 0, 4, "first");
  Poll();
  EXPECT_EQ(any.text, "first");
  EXPECT_EQ(from_one.ended.times, 0);
  Send(1, 0, 4, "next.");
  Poll();
  EXPECT_EQ(from_one.text, "next.");
}

TEST_F(MessagesTest, CountWhatIsInFlightAndWhatHasMoved) {
  EXPECT_EQ(at(0).in_flight(), 0U);
  Recv(kAnyRank, 4);
  Recv(1, 6);
  EXPECT_EQ(at(0).in_flight(), 2U);
  const std::uint64_t before = at(0).advances();
  Send(2, 0, 4, "hello");
  Poll();
  EXPECT_EQ(at(0).in_flight(), 1U);
  EXPECT_GT(at(0).advances(), before);
  Send(1, 0, 6, "hello");
  Poll();
  EXPECT_EQ(at(0).in_flight(), 0U);
}

TEST_F(MessagesTest, WithAPeerThatIsNoOtherRankAreRefused) {
  char byte = 0;
  TransferEnding ended;
  for (const int peer : {-2, 0, kRanks, kRanks + 5}) {
    EXPECT_EQ(at(0).Send(group(0), peer, 1, {}, ended.done()).code(),
              StatusCode::kInvalidArgument)
        << peer;
    EXPECT_EQ(at(0)
                  .Recv(group(0), peer, 1,
                        {reinterpret_cast<std::byte*>(&byte), 1, {}}, nullptr,
                        ended.done())
                  .code(),
              StatusCode::kInvalidArgument)
        << peer;
  }
  Poll();
  EXPECT_EQ(ended.times, 0);
  EXPECT_EQ(at(0).in_flight(), 0U);
}

// A length below 0, as a size_t, among them.
TEST_F(MessagesTest, OfMoreBytesThanAHeaderMayNameAreRefused) {
  char byte = 0;
  TransferEnding ended;
  for (const std::size_t bytes :
       {kMaxPayloadBytes + 1, SIZE_MAX - 256, SIZE_MAX - 255, SIZE_MAX}) {
    const Status refused = at(0).Send(
        group(0), 1, 1, {reinterpret_cast<const std::byte*>(&byte), bytes, {}},
        ended.done());
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << bytes;
    EXPECT_NE(refused.message().find("expected at most 1099511627776"),
              std::string::npos)
        << refused.message();
  }
  Poll();
  EXPECT_EQ(ended.times, 0);
  EXPECT_EQ(at(0).in_flight(), 0U);
  // The next one has the number of the first.
  Send(0, 1, 1, "hello");
  std::string text(5, '?');
  EXPECT_TRUE(
      at(1).Recv(group(1), 0, 1, Room(&text), nullptr, ended.done()).ok());
  Poll();
  EXPECT_EQ(text, "hello");
}

TEST_F(MessagesTest, ThatWaitForAnyRankFailWithTheJob) {
  Receive& any = Recv(kAnyRank, 4);
  Receive& behind = Recv(1, 4);
  ranks_.fabric(0).Fail(Status(StatusCode::kAborted, "enough"));
  Poll();
  for (const Receive* receive : {&any, &behind}) {
    EXPECT_EQ(receive->ended.times, 1);
    EXPECT_EQ(receive->ended.status.code(), StatusCode::kAborted);
  }
  EXPECT_EQ(at(0).in_flight(), 0U);
}

TEST_F(MessagesTest, ThatWaitForAnyRankEndWithTheirGroup) {
  Receive& any = Recv(kAnyRank, 4);
  at(0).Forget(9);
  Poll();
  EXPECT_EQ(any.ended.times, 0) << "another group was closed";
  at(0).Forget(group(0).id);
  EXPECT_EQ(any.ended.times, 0) << "inside the call";
  Poll();
  EXPECT_EQ(any.ended.times, 1);
  EXPECT_EQ(any.ended.status.code(), StatusCode::kAborted);
}

TEST_F(MessagesTest, ThatNobodyIsLeftToSendEndTheJob) {
  Receive& any = Recv(kAnyRank, 4);
  Leave(1);
  Poll();
  EXPECT_TRUE(ranks_.fabric(0).status().ok()) << "rank 2 may send";
  Leave(2);
  Poll();
  EXPECT_EQ(any.ended.times, 1);
  EXPECT_EQ(any.ended.status.code(), StatusCode::kUnavailable);
}

// Knows of one rank, which accepts no links.
class Refusing final : public LinkSource {
 public:
  explicit Refusing(Sink* sink) : sink_(sink) {}

  Status Learn(const std::vector<std::string>&) override { return Status(); }
  void Dial(int peer) override { dialled_ = peer; }
  std::string AddressOf(int) const override { return "somewhere"; }
  std::string TroubleWith(int) const override { return ""; }
  bool Poll() override {
    const auto peer = std::exchange(dialled_, std::nullopt);
    if (peer) sink_->OnGone(*peer, Status(StatusCode::kUnavailable, "refused"));
    return peer.has_value();
  }
  bool busy() const override { return false; }
  std::chrono::nanoseconds Patience() const override {
    return std::chrono::seconds(1);
  }

 private:
  Sink* const sink_;
  std::optional<int> dialled_;
};

// Rank 0 awaits a message of any rank of a group whose other member, rank 2, it
// was never linked to, and finds gone. Rank 1, which is linked to both, is not
// in the group.
class NeverLinked : public ::testing::Test {
 protected:
  NeverLinked() {
    ranks_.Make(3, {}, [](Fabric* fabric, auto links) {
      if (fabric->rank() != 0) return fabric->Connect(std::move(links));
      links[2] = nullptr;
      fabric->Connect(std::move(links), std::make_unique<Refusing>(fabric));
    });
    messages_ = std::make_unique<Messages>(ranks_.at(0));
    group_.id = 5;
    group_.size = 2;
    group_.members = {0, 2};
    EXPECT_TRUE(
        messages_
            ->Recv(group_, kAnyRank, 4, Room(&text_), nullptr, ended_.done())
            .ok());
    Poll();
  }
  ~NeverLinked() override { ranks_.fabrics.clear(); }
  void Poll() {
    for (int i = 0; i < 50; ++i) {
      ranks_.PollAll(1);
      messages_->Poll();
    }
  }

  std::string text_ = std::string(5, '?');
  TransferEnding ended_;
  CallGroup group_;
  std::unique_ptr<Messages> messages_;
  FabricRanks ranks_;
};

TEST_F(NeverLinked, TheNewsOfADeathIsAwaited) {
  EXPECT_EQ(ended_.times, 0) << ended_.status.ToString();
  ranks_.clock.Advance(std::chrono::milliseconds(400));
  Poll();
  EXPECT_EQ(ended_.times, 0) << ended_.status.ToString();
  ranks_.at(1).Fail(Status(StatusCode::kUnavailable, "rank 2 has died"));
  Poll();
  EXPECT_EQ(ended_.times, 1);
  EXPECT_EQ(ended_.status.message(), "rank 2 has died");
}

TEST_F(NeverLinked, WithoutSuchNewsTheRankHasLeft) {
  ranks_.clock.Advance(std::chrono::milliseconds(600));
  Poll();
  EXPECT_EQ(ended_.times, 1);
  EXPECT_EQ(ended_.status.message(),
            "all ranks that rank 0 could receive tag 4 from have left the job");
}

}  // namespace
}  // namespace gradientflow::testing
