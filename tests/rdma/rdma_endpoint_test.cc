#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <tuple>
#include <vector>

#include "tests/rdma/rdma_ranks.h"

// Ranks that are linked, on devices of which some do not work: both ranks of
// each pair come to the same verdict and know why, the others are linked, and
// nothing is left of anything.
namespace gradientflow::testing {
namespace {

using ::testing::HasSubstr;

// Both ranks of each pair agree, and who is not linked is told why.
void ExpectAgreement(RdmaRanks& ranks) {
  for (int r = 0; r < ranks.size(); ++r) {
    for (int p = 0; p < ranks.size(); ++p) {
      const auto at = static_cast<std::size_t>(p);
      if (p == r || !ranks[r].endpoint || !ranks[p].endpoint) continue;
      EXPECT_EQ(ranks[r].linked[at],
                ranks[p].linked[static_cast<std::size_t>(r)])
          << r << " and " << p;
      EXPECT_NE(ranks[r].linked[at], !ranks[r].unlinked[at].ok());
    }
  }
}

class RdmaEndpoints : public ::testing::TestWithParam<int> {};

TEST_P(RdmaEndpoints, AllAreLinked) {
  RdmaRanks ranks(GetParam());
  ranks.options.placed_slot_bytes = 65536;
  ranks.options.placed_notices = 40;
  ASSERT_TRUE(ranks.Open());
  ranks.Connect(false);
  ranks.ExpectTraffic(30, 1);
}

TEST_P(RdmaEndpoints, ACutCableLeavesItsPairToOthers) {
  RdmaRanks ranks(GetParam());
  ranks.fake.SetCable("fake0", "fake1", false);
  ASSERT_TRUE(ranks.Open());
  ranks.Connect(true);
  ExpectAgreement(ranks);
  EXPECT_FALSE(ranks[0].linked[1]);
  for (const int r : {0, 1}) {
    const Status& why = ranks[r].unlinked[static_cast<std::size_t>(1 - r)];
    for (const char* part : {"nothing got through by RDMA", "fake0:1",
                             "fake1:1", "10.9.0.1", "10.9.0.2", "MTU 1024"}) {
      EXPECT_THAT(why.message(), HasSubstr(part));
    }
  }
  ranks.ExpectTraffic(20, 2);
}

TEST_P(RdmaEndpoints, WithoutLeaveItIsAnErrorAndTheOthersAreThere) {
  RdmaRanks ranks(GetParam());
  ranks.fake.SetCable("fake0", "fake1", false);
  ASSERT_TRUE(ranks.Open());
  ranks.Connect(false);
  for (int r = 0; r < ranks.size(); ++r) {
    EXPECT_EQ(ranks[r].connected.ok(), r > 1);
    for (int p = 0; p < ranks.size(); ++p) {
      EXPECT_EQ(ranks[r].linked[static_cast<std::size_t>(p)],
                r != p && (r > 1 || p > 1))
          << r << " " << p;
    }
  }
  EXPECT_THAT(ranks[0].connected.message(), HasSubstr("rank 1 ("));
  EXPECT_THAT(ranks[1].connected.message(), HasSubstr("rank 0 ("));
  ranks.ExpectTraffic(20, 3);
}

TEST_P(RdmaEndpoints, ARankWithOtherPlacesIsLeftOut) {
  RdmaRanks ranks(GetParam());
  ASSERT_TRUE(ranks.Open());
  TransportOptions other = ranks.options;
  other.rank = 1;
  other.ranks = ranks.size();
  other.placed_slot_bytes = 4096;
  other.placed_notices = 3;
  ranks[1].endpoint = OpenRdma(other, ranks.fake.api(1)).value();
  ranks.Connect(true);
  ExpectAgreement(ranks);
  for (int r = 0; r < ranks.size(); ++r) EXPECT_FALSE(ranks[r].linked[1]);
  ranks.ExpectTraffic(10, 4);
}

TEST_P(RdmaEndpoints, ARankOnAnotherLinkLayerIsLeftOut) {
  RdmaRanks ranks(GetParam());
  FakeHost host = UsualHost(40);
  host.devices[0].ports[0].ethernet = false;
  host.devices[0].ports[0].lid = 7;
  const int other = ranks.fake.AddHost(host);
  ASSERT_TRUE(ranks.Open());
  TransportOptions own = ranks.options;
  own.rank = 0;
  own.ranks = ranks.size();
  ranks[0].endpoint = OpenRdma(own, ranks.fake.api(other)).value();
  ranks.Connect(true);
  ExpectAgreement(ranks);
  EXPECT_THAT(ranks[0].unlinked[1].message(), HasSubstr("InfiniBand"));
  EXPECT_THAT(ranks[1].unlinked[0].message(), HasSubstr("InfiniBand"));
  ranks.ExpectTraffic(10, 5);
}

INSTANTIATE_TEST_SUITE_P(Ranks, RdmaEndpoints, ::testing::Values(2, 3, 5));

// Rank 1 sends long messages in all lanes, which want more slots than rank 0
// has. Rank 2's message begins when all slots are taken.
TEST(RdmaSlots, AreNotAllKeptByOnePeer) {
  RdmaRanks ranks(3);
  ASSERT_TRUE(ranks.Open());
  ranks.Connect(false);
  constexpr std::size_t kLong = std::size_t{8} << 20;
  for (int lane = 0; lane < 9; ++lane) {
    ranks[1].owner.Send(0, static_cast<std::uint64_t>(lane), kLong, lane);
  }
  EXPECT_TRUE(ranks.Drive([&] { return ranks[0].owner.headers >= 9; }));
  ranks[2].owner.Send(0, 99, kLong / 8, 1);
  EXPECT_TRUE(
      ranks.Drive([&] { return ranks[0].owner.received.size() == 10; }));
  ASSERT_EQ(ranks[0].owner.received.size(), 10U);
  EXPECT_EQ(ranks[0].owner.received[0].peer, 2)
      << "the shorter message had to wait for a longer one of another peer";
  for (const Received& message : ranks[0].owner.received) {
    EXPECT_TRUE(Intact(message));
  }
}

// ---- A call that fails

struct Call {
  const char* name;
  int error;
};
void PrintTo(const Call& call, std::ostream* out) { *out << call.name; }

class RdmaCalls : public ::testing::TestWithParam<Call> {};

// A rank that sleeps is woken by a message.
void ExpectWakes(RdmaRanks& ranks, int sleeper, int sender) {
  LinkOwner& owner = ranks[sleeper].owner;
  // Acknowledgements of what was sent before may still come.
  const auto may_sleep = [&] {
    bool may = true;
    for (int p = 0; p < ranks.size(); ++p) {
      if (!ranks[sleeper].linked[static_cast<std::size_t>(p)]) continue;
      may &= owner.to(p).PrepareToSleep();
    }
    return may;
  };
  while (!may_sleep()) owner.PollOnce();
  ranks[sender].owner.Send(sleeper, 1, 10);
  for (int i = 0; i < 20; ++i) ranks[sender].owner.PollOnce();
  // What wakes it first may be an acknowledgement.
  EXPECT_TRUE(owner.poller()->Poll(std::chrono::seconds(5))) << "not woken";
  EXPECT_TRUE(owner.Await([&] { return owner.received.size() == 1; }));
  owner.received.clear();
}

// Among 3 ranks, rank 1's n-th call fails, for every n until all goes well.
// Either its endpoint does not open, with a reason, or all ranks agree on who
// is linked, and those that are do work, also after a sleep.
TEST_P(RdmaCalls, TheNthThatFailsHarmsNoOneElse) {
  int n = 1;
  for (; n < 100; ++n) {
    SCOPED_TRACE(n);
    RdmaRanks ranks(3);
    ranks.options.placed_slot_bytes = 8192;
    ranks.options.placed_notices = 4;
    ranks.fake.FailCall(1, GetParam().name, n, GetParam().error);
    const bool opened = ranks.Open();
    EXPECT_TRUE(ranks[0].opened.ok() && ranks[2].opened.ok());
    if (!opened) {
      EXPECT_NE(ranks[1].opened.message(), "");
      EXPECT_NE(ranks[1].opened.code(), StatusCode::kInvalidArgument)
          << ranks[1].opened.ToString();
    }
    ranks.Connect(true);
    const bool spared = ranks.fake.ForgetFaults(1);
    if (spared) {
      EXPECT_TRUE(opened && ranks[0].linked[1] && ranks[1].linked[2]);
    }
    ExpectAgreement(ranks);
    EXPECT_TRUE(ranks[0].linked[2]);
    ranks.ExpectTraffic(5, static_cast<std::uint64_t>(n));
    if (opened && ranks[1].linked[2]) {
      ExpectWakes(ranks, 1, 2);
      ExpectWakes(ranks, 2, 1);
    }
    if (spared) break;
  }
  // Each call of that name has failed once.
  EXPECT_LT(n, 100);
  EXPECT_GT(n, 1) << "is this call made at all?";
}

INSTANTIATE_TEST_SUITE_P(
    Of, RdmaCalls,
    ::testing::Values(Call{"get_device_list", ENOSYS},
                      Call{"open_device", EACCES}, Call{"query_device", EIO},
                      Call{"query_port", EIO}, Call{"query_gids", EIO},
                      Call{"alloc_pd", ENOMEM}, Call{"reg_mr", ENOMEM},
                      Call{"create_comp_channel", EMFILE},
                      Call{"create_cq", ENOMEM}, Call{"create_qp", ENOMEM},
                      Call{"modify_qp", ETIMEDOUT}, Call{"post_send", EIO},
                      Call{"post_recv", ENOMEM}),
    [](const auto& call) { return std::string(call.param.name); });

// ---- Opening

TEST(RdmaOpen, DevicesThatMayNotBeOpenedAreNoWrongSetting) {
  FakeVerbs fake(1);
  fake.FailCall(0, "open_device", 1, EACCES, 10);
  const auto opened = OpenRdma(OptionsOfTests(), fake.api(0));
  EXPECT_EQ(opened.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(opened.status().message(), HasSubstr("cannot be opened"));
  EXPECT_THAT(opened.status().message(), HasSubstr("/dev/infiniband"));
}

TEST(RdmaOpen, WithoutADeviceItIsAbsent) {
  FakeVerbs fake(0);
  fake.AddHost({});
  const auto opened = OpenRdma(OptionsOfTests(), fake.api(0));
  EXPECT_EQ(opened.status().code(), StatusCode::kUnimplemented);
}

TEST(RdmaOpen, MemoryThatMayNotBeLockedIsExhausted) {
  FakeVerbs fake(1);
  fake.SetMemlock(0, 65536);
  const auto opened = OpenRdma(OptionsOfTests(), fake.api(0));
  EXPECT_EQ(opened.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(opened.status().message(), HasSubstr("staging memory"));
}

}  // namespace
}  // namespace gradientflow::testing
