#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/transports/fabric_ranks.h"
#include "transports/fabric.h"
#include "transports/tags.h"

// Messages that come before their receives: what is held, what is announced,
// and that nothing waits for anything but its own receive. The fabrics of some
// ranks, driven in turn on one thread.
namespace gradientflow {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FabricRanks;
using testing::TransferEnding;
using Random = std::mt19937_64;

// A message, on both sides.
struct Message {
  int from = 0;
  int to = 0;
  MessageId id;
  std::string out;
  std::string in;
  TransferEnding sent;
  TransferEnding received;
};

class EarlyMessages : public ::testing::Test, protected FabricRanks {
 protected:
  ~EarlyMessages() override { fabrics.clear(); }

  void Make(int size, std::size_t early_bytes) {
    FabricOptions options;
    options.early_bytes = early_bytes;
    FabricRanks::Make(size, options);
  }

  Message& Send(int from, int to, MessageId id, std::size_t bytes) {
    auto& message = *messages_.emplace_back(std::make_unique<Message>());
    message.from = from;
    message.to = to;
    message.id = id;
    message.out.resize(bytes);
    for (char& c : message.out) c = static_cast<char>(random_());
    message.in.assign(bytes, '?');
    at(from).Send(to, id,
                  {reinterpret_cast<const std::byte*>(message.out.data()),
                   message.out.size(),
                   {}},
                  {7, 0}, message.sent.done());
    return message;
  }
  void Receive(Message& message) {
    at(message.to)
        .Recv(message.from, message.id,
              {reinterpret_cast<std::byte*>(message.in.data()),
               message.in.size(),
               {}},
              7, message.received.done());
  }
  void ExpectAllArrived() {
    for (const auto& message : messages_) {
      ASSERT_EQ(message->sent.times, 1);
      ASSERT_TRUE(message->sent.status.ok());
      ASSERT_EQ(message->received.times, 1);
      ASSERT_TRUE(message->received.status.ok())
          << message->received.status.ToString();
      ASSERT_TRUE(message->in == message->out) << message->out.size();
    }
  }
  std::size_t HeldAt(int rank) {
    std::size_t bytes = 0;
    for (int r = 0; r < at(rank).size(); ++r) bytes += at(rank).held_bytes(r);
    return bytes;
  }

  Random random_{5};
  std::vector<std::unique_ptr<Message>> messages_;
};

constexpr Tag Numbered(std::uint32_t number) {
  return PointToPointTag(3, number);
}
// The receiver numbers the messages of this tag.
constexpr Tag kInOrder = PointToPointTag(kNumberedTags + 3, 0);

TEST_F(EarlyMessages, BeyondTheCreditAreAnnouncedAndComeWhenReceived) {
  Make(2, 4000);
  for (std::uint32_t i = 0; i < 20; ++i) Send(0, 1, Numbered(i), 700);
  PollAll();
  EXPECT_EQ(at(1).held_bytes(0), 1400U);
  EXPECT_EQ(at(1).waiting_bytes(0), 20 * 700U);
  for (std::uint32_t i = 0; i < 20; ++i) {
    EXPECT_TRUE(at(1).HasMessage(0, Numbered(i)));
    EXPECT_EQ(messages_[i]->sent.times, i < 2 ? 1 : 0);
  }
  for (int i = 20; i-- > 0;) {
    Receive(*messages_[static_cast<std::size_t>(i)]);
    PollAll(20);
    EXPECT_EQ(messages_[static_cast<std::size_t>(i)]->received.times, 1);
  }
  ExpectAllArrived();
  EXPECT_EQ(at(1).waiting_bytes(0), 0U);
}

TEST_F(EarlyMessages, AFloodHoldsUpNeitherWhatIsBehindItNorAnotherPeer) {
  Make(3, 8000);
  for (const Tag flood : {Numbered(0), kInOrder}) {
    Message* awaited = nullptr;
    for (std::uint32_t i = 0; i < 500; ++i) {
      Send(0, 1, flood + (flood == kInOrder ? 0 : i), 1 + random_() % 3000);
      if (i == 250) awaited = &Send(0, 1, CallTag(0, flood & 7, 3), 3000);
    }
    Receive(*awaited);
    PollAll();
    EXPECT_EQ(awaited->received.times, 1);
    EXPECT_LE(HeldAt(1), 2000U);
    Message& other = Send(2, 1, flood, 1000);
    PollAll();
    EXPECT_EQ(other.sent.times, 1) << "unasked";
    for (auto& message : messages_) {
      if (message.get() != awaited) Receive(*message);
    }
    PollAll(2000);
    ExpectAllArrived();
    messages_.clear();
  }
}

TEST_F(EarlyMessages, OfAllPeersTakeNoMoreThanTheBudget) {
  constexpr std::size_t kBudget = 50'000;
  for (const int size : {2, 3, 5, 7, 8}) {
    fabrics.clear();
    messages_.clear();
    Make(size, kBudget);
    // Rank 0 receives first, so that its peers get more credit.
    for (int round = 0; round < 3; ++round) {
      const std::size_t begin = messages_.size();
      for (int i = 0; i < 60; ++i) {
        for (int r = 1; r < size; ++r) {
          const auto number = static_cast<std::uint32_t>(60 * round + i);
          const std::size_t bytes =
              random_() % 4 == 0 ? random_() % 20'000 : random_() % 800;
          Message& message = Send(
              r, 0, random_() % 2 == 0 ? kInOrder : Numbered(number), bytes);
          if (round == 0) Receive(message);
        }
      }
      PollAll(100);
      EXPECT_LE(HeldAt(0), kBudget);
      if (round == 0) continue;
      // Those of one peer in order, since some are numbered on arrival.
      for (std::size_t i = begin; i < messages_.size(); ++i) {
        if (messages_[i]->id.tag == kInOrder) Receive(*messages_[i]);
      }
      std::shuffle(messages_.begin() + static_cast<std::ptrdiff_t>(begin),
                   messages_.end(), random_);
      for (std::size_t i = begin; i < messages_.size(); ++i) {
        if (messages_[i]->id.tag != kInOrder) Receive(*messages_[i]);
      }
      PollAll(500);
      ExpectAllArrived();
    }
  }
}

TEST_F(EarlyMessages, CreditGrowsForAPeerThatIsAwaited) {
  Make(2, 8000);
  for (std::uint32_t i = 0; i < 10; ++i) Receive(Send(0, 1, Numbered(i), 700));
  PollAll();
  ExpectAllArrived();
  messages_.clear();
  for (std::uint32_t i = 10; i < 30; ++i) Send(0, 1, Numbered(i), 700);
  PollAll();
  // More than the share of 4000 bytes, and no more than all of the budget.
  EXPECT_GT(at(1).held_bytes(0), 4000U);
  EXPECT_LE(at(1).held_bytes(0), 8000U);
}

TEST_F(EarlyMessages, WithoutAnyBudgetAllAreAnnounced) {
  Make(2, 0);
  for (std::uint32_t i = 0; i < 50; ++i) {
    Send(0, 1, i % 2 == 0 ? kInOrder : Numbered(i), random_() % 5000 + 1);
    Send(1, 0, i % 2 == 0 ? kInOrder : Numbered(i), 0);
  }
  PollAll();
  EXPECT_EQ(at(1).held_bytes(0), 0U);
  for (const auto& message : messages_) {
    EXPECT_EQ(message->sent.times, message->out.empty() ? 1 : 0);
    Receive(*message);
  }
  PollAll();
  ExpectAllArrived();
}

TEST_F(EarlyMessages, OfAnotherLengthFailTheReceiveAlone) {
  Make(2, 0);
  for (const bool early : {false, true}) {
    Message& message = Send(0, 1, Numbered(early ? 1 : 0), 3000);
    message.in.resize(2999);
    if (early) PollAll();
    Receive(message);
    PollAll();
    EXPECT_EQ(message.received.status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(message.received.status.message().find("3000 bytes"),
              std::string::npos);
    EXPECT_EQ(message.sent.times, 1);
    EXPECT_TRUE(message.sent.status.ok());
    EXPECT_TRUE(at(0).status().ok() && at(1).status().ok());
  }
  Message& message = Send(0, 1, CallTag(0, 4), 3000);
  message.in.resize(2999);
  Receive(message);
  PollAll();
  EXPECT_EQ(at(0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(message.received.times, 1);
}

TEST_F(EarlyMessages, AnAnnouncementOfACallThatWasNotMadeEndsTheJob) {
  for (const bool early : {false, true}) {
    fabrics.clear();
    Make(2, 0);
    if (!early) at(1).CallDone(0, 0, 7);
    Send(0, 1, CallTag(0, 7), 300);
    if (early) PollAll();
    if (early) at(1).CallDone(0, 0, 7);
    PollAll();
    EXPECT_EQ(at(1).status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(at(0).status().message().find("sent 300 bytes of collective #7"),
              std::string::npos)
        << at(0).status().message();
  }
}

TEST_F(EarlyMessages, OfAClosedGroupAreDeclinedAndTheirCreditComesBack) {
  Make(2, 3000);
  for (int round = 0; round < 5; ++round) {
    for (const Tag tag : {kInOrder, Numbered(9)}) {
      for (std::uint32_t i = 0; i < 3; ++i) {
        Send(0, 1, {tag + (tag == kInOrder ? 0 : i), 4}, 900);
      }
    }
    PollAll();
    EXPECT_EQ(at(1).held_bytes(0), 900U);
    at(1).CloseGroup(4);
    PollAll();
    for (const auto& message : messages_) EXPECT_EQ(message->sent.times, 1);
    EXPECT_EQ(at(1).waiting_bytes(0), 0U);
    messages_.clear();
  }
}

TEST_F(EarlyMessages, WhoLeavesSendsWhatWasCalledFor) {
  Make(2, 0);
  Message& message = Send(0, 1, Numbered(0), 4000);
  Receive(message);
  std::thread other([&] {
    while (message.received.times == 0) at(1).Poll();
    at(1).Leave(seconds(60));
  });
  at(0).Leave(seconds(60));
  other.join();
  ExpectAllArrived();
}

TEST_F(EarlyMessages, WhoLeavesDeclinesTheOthers) {
  Make(3, 0);
  for (std::uint32_t i = 0; i < 20; ++i) {
    Send(0, 1, Numbered(i), 400);
    Send(1, 0, kInOrder, 400);
    Send(2, 0, kInOrder, 400);
  }
  // Each waits for the other ones to receive; none will. By this clock they
  // would wait for ever.
  std::thread one([&] { at(1).Leave(seconds(60)); });
  std::thread two([&] { at(2).Leave(seconds(60)); });
  at(0).Leave(seconds(60));
  one.join();
  two.join();
  for (int r = 0; r < 3; ++r) EXPECT_TRUE(at(r).status().ok());
  for (const auto& message : messages_) {
    EXPECT_EQ(message->sent.times, 1);
    EXPECT_TRUE(message->sent.status.ok());
  }
}

TEST_F(EarlyMessages, ADeathEndsWhatWasAnnouncedOnBothSides) {
  for (const int dying : {0, 1}) {
    fabrics.clear();
    Make(2, 0);
    Message& message = Send(0, 1, Numbered(0), 4000);
    PollAll();
    fabrics[static_cast<std::size_t>(dying)].reset();
    if (dying == 0) Receive(message);
    PollAll();
    clock.Advance(milliseconds(500));
    PollAll();
    const TransferEnding& ending = dying == 0 ? message.received : message.sent;
    EXPECT_EQ(ending.times, 1);
    EXPECT_EQ(ending.status.code(), StatusCode::kUnavailable);
  }
}

TEST_F(EarlyMessages, WhatAPeerSaysOfThemIsChecked) {
  struct Wrong {
    Header header;
    const char* says;
  };
  Header clear;
  clear.kind = MessageKind::kClear;
  clear.tag = Numbered(0);
  Header decline = clear;
  decline.kind = MessageKind::kDecline;
  decline.signature = 1;  // Sent, but not announced.
  Header credit;
  credit.kind = MessageKind::kCredit;
  credit.tag = 4001;
  Header payload;
  payload.kind = MessageKind::kPayload;
  payload.tag = Numbered(5);
  Header data;
  data.payload_bytes = 2000;
  data.tag = Numbered(6);
  const Wrong wrongs[] = {
      {clear, "answers to message 0"},
      {decline, "answers to message 1"},
      {credit, "gives rank 1 credit for 4001 bytes"},
      {payload, "has not called for"},
      {data, "sends 2000 bytes unasked, expected at most 2000"},
  };
  for (const Wrong& wrong : wrongs) {
    fabrics.clear();
    Make(2, 4000);
    const auto landing = at(1).OnHeader(0, 0, wrong.header);
    if (landing.ok()) at(1).OnMessage(0, 0, wrong.header);
    const Status said = landing.ok() ? at(1).status() : landing.status();
    EXPECT_EQ(said.code(), StatusCode::kDataLoss);
    EXPECT_NE(said.message().find(wrong.says), std::string::npos)
        << said.message();
    EXPECT_NE(said.message().find("rank 0"), std::string::npos);
  }
}

// A peer that says anything that is well-formed. The sanitizers see what is
// touched that should not be.
TEST_F(EarlyMessages, NothingThatAPeerSaysTouchesOtherMemory) {
  for (int round = 0; round < 300; ++round) {
    fabrics.clear();
    messages_.clear();
    Make(2, 4000);
    for (std::uint32_t i = 0; i < 4; ++i) {
      Receive(Send(1, 0, Numbered(i), random_() % 2000));
      auto& awaited = *messages_.emplace_back(std::make_unique<Message>());
      awaited.from = 0;
      awaited.to = 1;
      awaited.id = i % 2 == 0 ? kInOrder : Numbered(i);
      awaited.in.resize(8);
      Receive(awaited);
    }
    for (int i = 0; i < 40 && at(1).status().ok(); ++i) {
      Header header;
      header.kind = static_cast<MessageKind>(1 + random_() % 10);
      header.tag = random_() % 8 == 0   ? random_()
                   : random_() % 2 == 0 ? Numbered(random_() % 4)
                                        : kInOrder + random_() % 3;
      header.signature = random_() % 2 == 0 ? 7 : random_() % 6;
      header.payload_bytes = header.kind == MessageKind::kAnnounce ? 16
                             : random_() % 2 == 0                  ? 8
                                                  : random_() % 100;
      const auto landing = at(1).OnHeader(0, 0, header);
      if (!landing.ok() || landing.value().paused) break;
      std::byte* const to = landing.value().data;
      for (std::uint64_t b = 0; b < header.payload_bytes; ++b) {
        to[b] = b < 2 ? static_cast<std::byte>(random_() % 9) : std::byte{0};
      }
      at(1).OnMessage(0, 0, header);
      at(1).Poll();
    }
  }
}

}  // namespace
}  // namespace gradientflow
