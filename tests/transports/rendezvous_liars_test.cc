#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gradientflow/base/status.h"
#include "tests/transports/rendezvous_ranks.h"
#include "tests/transports/rendezvous_talker.h"
#include "transports/rendezvous/frames.h"

// Processes that know the secret, but do not do what a rank does. Each is named
// and left out, and the right one can still come.
namespace gradientflow {
namespace {

using rendezvous::FrameType;
using rendezvous_test::AllCards;
using rendezvous_test::Cards;
using rendezvous_test::FreeAddress;
using rendezvous_test::Meet;
using rendezvous_test::OptionsFor;
using rendezvous_test::Says;
using rendezvous_test::Talker;
using std::chrono::milliseconds;
using std::chrono::seconds;

struct Liar {
  const char* what;  // The reason says so.
  // Plays the part of rank 1; returns whether it got as far as to lie.
  std::function<bool(Talker*, int size)> lie;
  StatusCode code = StatusCode::kDataLoss;
};

const Liar kLiars[] = {
    {"a card that is none",
     [](Talker* talker, int size) { return talker->Join(1, size, "[]"); }},
    {"other settings",
     [](Talker* talker, int size) { return talker->Join(1, size, "other"); },
     StatusCode::kInvalidArgument},
    {"expects",
     [](Talker* talker, int size) {
       return talker->JoinWithoutCard(1, size + 1);
     },
     StatusCode::kInvalidArgument},
    {"sent what was not expected now",
     [](Talker* talker, int size) {
       return talker->Join(1, size) && talker->Send(FrameType::kGo, "");
     }},
    {"sent what was not expected now",  // Before it has a seat.
     [](Talker* talker, int size) {
       return talker->JoinWithoutCard(1, size) &&
              talker->Await(FrameType::kWelcome) &&
              talker->Send(FrameType::kAck, "");
     }},
    {"sent no frame",
     [](Talker* talker, int size) {
       return talker->Join(1, size) && talker->SendBytes("GET / HTTP/1.0\r\n");
     }},
    {"sent what was not expected now",  // Once all have been introduced.
     [](Talker* talker, int size) {
       return talker->Join(1, size) &&
              (size > 2 || talker->Await(FrameType::kIntroduction)) &&
              talker->Send(FrameType::kAck, "no number");
     }},
};

Status CheckCard(int rank, const std::string& card) {
  const std::string name = "rank " + std::to_string(rank);
  if (card == "[]") {
    return Status(StatusCode::kDataLoss, name + " has a card that is none");
  }
  if (card == "other") {
    return Status(StatusCode::kInvalidArgument, name + " has other settings");
  }
  return Status();
}

// The last of `size` ranks comes when the liar has been left out. With two
// ranks the liar is introduced.
void ExpectLeftOut(const Liar& liar, int size) {
  SCOPED_TRACE(std::string(liar.what) + ", size " + std::to_string(size));
  const std::string address = FreeAddress();
  std::mutex mutex;
  std::vector<std::string> told;
  std::vector<RendezvousOptions> first = {
      OptionsFor(address, 0, size, seconds(20))};
  if (size > 2) first.push_back(OptionsFor(address, 2, size, seconds(20)));
  first[0].check_card = &CheckCard;
  first[0].on_left_out = [&](const Status& why) {
    const std::lock_guard lock(mutex);
    told.push_back(why.message());
  };
  std::vector<Cards> results;
  std::thread ranks([&] { results = Meet(first); });
  Talker talker(address);
  EXPECT_TRUE(liar.lie(&talker, size));
  ASSERT_TRUE(talker.Await(FrameType::kRefused));
  const Status why = rendezvous::DecodeStatus(talker.frame().body);
  EXPECT_EQ(why.code(), liar.code);
  EXPECT_NE(why.message().find(liar.what), std::string::npos) << why.message();
  EXPECT_NE(why.message().find("rank 1"), std::string::npos) << why.message();
  const auto last = Meet({OptionsFor(address, 1, size, seconds(20))});
  ranks.join();
  results.insert(results.end(), last.begin(), last.end());
  for (const Cards& cards : results) {
    ASSERT_TRUE(cards.ok()) << cards.status().ToString();
    EXPECT_EQ(cards.value(), AllCards(size));
  }
  EXPECT_EQ(told, std::vector<std::string>{why.message()});
}

TEST(RendezvousLiars, AreLeftOutAndTheRightOneIsTaken) {
  for (const Liar& liar : kLiars) {
    for (const int size : {2, 3}) ExpectLeftOut(liar, size);
  }
}

// A job that can never run is told so long before its deadline.
TEST(RendezvousLiars, OfOtherSettingsEndTheJobIfNoOneElseComes) {
  struct Case {
    std::uint32_t size;
    const char* card;
    const char* reason;
  };
  for (const Case& other : {Case{3, "other", "rank 1 has other settings"},
                            Case{4, "a card", ") expects 4 ranks, rank 0"}}) {
    const std::string address = FreeAddress();
    std::vector<RendezvousOptions> first = {
        OptionsFor(address, 0, 3, seconds(60)),
        OptionsFor(address, 2, 3, seconds(60))};
    first[0].check_card = &CheckCard;
    const SteadyClock clock;
    const Clock::Time began = clock.Now();
    std::vector<Cards> results;
    std::thread ranks([&] { results = Meet(first); });
    Talker talker(address);
    EXPECT_TRUE(talker.JoinWithoutCard(1, other.size) &&
                talker.Send(FrameType::kCard, other.card));
    EXPECT_TRUE(talker.Await(FrameType::kRefused));
    ranks.join();
    EXPECT_LT(Seconds(clock.Now() - began), 10);
    for (const Cards& cards : results) {
      EXPECT_EQ(cards.status().code(), StatusCode::kInvalidArgument);
      EXPECT_TRUE(Says(cards, other.reason)) << cards.status().ToString();
    }
  }
}

// As long as somebody else is missing, the right one may still come.
TEST(RendezvousLiars, OfOtherSettingsDoNotHurryThoseWhoAreMissing) {
  const std::string address = FreeAddress();
  std::vector<RendezvousOptions> first = {
      OptionsFor(address, 0, 3, milliseconds(4000))};
  first[0].check_card = &CheckCard;
  std::vector<Cards> results;
  std::thread ranks([&] { results = Meet(first); });
  Talker talker(address);
  EXPECT_TRUE(talker.Join(1, 3, "other"));
  EXPECT_TRUE(talker.Await(FrameType::kRefused));
  ranks.join();
  EXPECT_EQ(results[0].status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Says(results[0], "ranks 1, 2 of 3 did not join in time") &&
              Says(results[0], "left out: rank 1 has other settings"))
      << results[0].status().ToString();
}

// A card that does not fit claims no rank: who has the rank keeps it.
TEST(RendezvousLiars, TakeNobodysPlaceByACardThatIsNone) {
  const std::string address = FreeAddress();
  std::vector<RendezvousOptions> first = {
      OptionsFor(address, 0, 3, milliseconds(1000)),
      OptionsFor(address, 1, 3, seconds(20))};
  first[0].check_card = &CheckCard;
  std::vector<Cards> results;
  std::thread ranks([&] { results = Meet(first); });
  Talker talker(address);
  ASSERT_TRUE(talker.Join(1, 3, "[]"));
  ASSERT_TRUE(talker.Await(FrameType::kRefused));
  ranks.join();
  for (const Cards& cards : results) {
    EXPECT_EQ(cards.status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(Says(cards, "ranks 2 of 3 did not join in time") &&
                Says(cards, "left out: rank 1 has a card that is none"))
        << cards.status().ToString();
  }
}

}  // namespace
}  // namespace gradientflow
