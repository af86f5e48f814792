#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <vector>

#include "tests/rdma/fake_ends.h"
#include "tests/rdma/fake_verbs.h"
#include "tests/rdma/verbs_end.h"

// What tests can make go wrong, and how the ends hear of it.
namespace gradientflow {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr Clock::Time kTimeOut{4096 << 10};  // That of VerbsEndOptions.

std::vector<ibv_event_type> AsyncEvents(VerbsEnd* end) {
  std::vector<ibv_event_type> types;
  while (IsReadable(end->context()->async_fd)) {
    ibv_async_event event = {};
    EXPECT_EQ(end->verbs().get_async_event(end->context(), &event), 0);
    types.push_back(event.event_type);
    end->verbs().ack_async_event(&event);
  }
  return types;
}

ibv_wc_status WriteAndWait(FakeEnds* ends) {
  EXPECT_EQ(ends->a.Post(ends->a.Write(ends->b, 0, 0, 3000)), 0);
  return ends->a.Await(1).at(0).status;
}

TEST(FakeFaults, TheNthCallFailsAndNoOther) {
  FakeEnds ends;
  ends.fake.FailCall(0, "alloc_pd", 2, EPERM);
  const VerbsApi& verbs = ends.a.verbs();
  ibv_pd* const first = verbs.alloc_pd(ends.a.context());
  ASSERT_NE(first, nullptr);
  ibv_pd* const elsewhere = ends.b.verbs().alloc_pd(ends.b.context());
  EXPECT_EQ(verbs.alloc_pd(ends.a.context()), nullptr);
  EXPECT_EQ(errno, EPERM);
  ibv_pd* const third = verbs.alloc_pd(ends.a.context());
  ASSERT_NE(third, nullptr);
  EXPECT_EQ(verbs.dealloc_pd(first), 0);
  EXPECT_EQ(verbs.dealloc_pd(third), 0);
  EXPECT_EQ(verbs.dealloc_pd(elsewhere), 0);
}

TEST(FakeFaults, SeveralCallsFailInTurn) {
  FakeVerbs fake(1);
  const VerbsApi& verbs = *fake.api(0);
  fake.FailCall(0, "fork_init", 2, ENOSYS, 3);
  for (const int error : {0, ENOSYS, ENOSYS, ENOSYS, 0}) {
    EXPECT_EQ(verbs.fork_init(), error);
  }
}

TEST(FakeFaults, AllCallsThatMayFail) {
  FakeEnds ends;
  const VerbsApi& v = ends.a.verbs();
  ibv_context* const context = ends.a.context();
  const auto next = [&](const char* call, int error) {
    ends.fake.FailCall(0, call, 1, error);
    errno = 0;
  };
  int count = 0;
  next("get_device_list", ENOSYS);
  EXPECT_EQ(v.get_device_list(&count), nullptr);
  EXPECT_EQ(errno, ENOSYS);
  next("open_device", EACCES);
  EXPECT_EQ(v.open_device(context->device), nullptr);
  EXPECT_EQ(errno, EACCES);
  next("create_cq", ENOMEM);
  EXPECT_EQ(v.create_cq(context, 1, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  next("create_comp_channel", EMFILE);
  EXPECT_EQ(v.create_comp_channel(context), nullptr);
  EXPECT_EQ(errno, EMFILE);
  next("reg_mr", EFAULT);
  EXPECT_EQ(v.reg_mr(ends.a.domain(), &count, sizeof(count), 0, 1), nullptr);
  EXPECT_EQ(errno, EFAULT);
  ibv_qp_init_attr wanted = {};
  next("create_qp", ENOMEM);
  EXPECT_EQ(v.create_qp(ends.a.domain(), &wanted), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  ibv_device_attr device = {};
  next("query_device", EIO);
  EXPECT_EQ(v.query_device(context, &device), EIO);
  ibv_port_attr port = {};
  next("query_port", EIO);
  EXPECT_EQ(v.query_port(context, 1, &port), EIO);
  next("query_gids", EINVAL);
  EXPECT_EQ(v.query_gids(context, nullptr, 0), -EINVAL);
  ibv_qp_attr set = {};
  next("modify_qp", ETIMEDOUT);
  EXPECT_EQ(v.modify_qp(ends.a.pair(), &set, 0), ETIMEDOUT);
  next("poll_cq", EIO);
  ibv_wc wc = {};
  EXPECT_LT(v.poll_cq(ends.a.queue(), 1, &wc), 0);
  next("req_notify_cq", EIO);
  EXPECT_EQ(v.req_notify_cq(ends.a.queue(), 0), EIO);
  next("post_send", EIO);
  EXPECT_EQ(ends.a.Post(ends.a.Write(ends.b, 0, 0, 1)), EIO);
  next("post_recv", EIO);
  EXPECT_EQ(ends.a.PostReceive(1), EIO);
  next("fork_init", ENOSYS);
  EXPECT_EQ(v.fork_init(), ENOSYS);
  EXPECT_EQ(v.fork_init(), 0);
}

TEST(FakeFaults, TheNthMessageEndsAsAskedFor) {
  FakeEnds ends;
  ends.fake.FailMessage(0, 2, IBV_WC_GENERAL_ERR);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(ends.a.Post(ends.a.Write(ends.b, 0, 0, 1)), 0);
  }
  const std::vector<ibv_wc> sent = ends.a.Await(3);
  EXPECT_EQ(sent[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(sent[1].status, IBV_WC_GENERAL_ERR);
  EXPECT_EQ(sent[2].status, IBV_WC_WR_FLUSH_ERR);
}

TEST(FakeFaults, AWriterGivesUpAfterAllItsTimeOuts) {
  FakeEnds ends;
  ends.fake.SetCable("fake0", "fake1", false);
  EXPECT_EQ(WriteAndWait(&ends), IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(ends.fake.Now(), milliseconds(1) + 7 * kTimeOut);
  EXPECT_EQ(ends.fake.stats(0).retries, 6U);
  EXPECT_THAT(AsyncEvents(&ends.a), SizeIs(0));
}

TEST(FakeFaults, SevenRetriesAreForEver) {
  VerbsEndOptions for_ever;
  for_ever.retries = 7;
  FakeEnds ends(Stepped(), for_ever);
  ends.fake.SetCable("fake1", "fake0", false);
  ASSERT_EQ(ends.a.Post(ends.a.Write(ends.b, 0, 0, 1)), 0);
  ends.fake.Advance(100 * kTimeOut);
  EXPECT_THAT(ends.a.Poll(), SizeIs(0));
  ends.fake.SetCable("fake1", "fake0", true);
  EXPECT_EQ(ends.a.Await(1).at(0).status, IBV_WC_SUCCESS);
}

TEST(FakeFaults, ADeadHostIsHeardOfByWhoWritesToIt) {
  FakeEnds ends;
  ASSERT_EQ(ends.b.PostReceive(1), 0);
  ends.fake.KillHost(1);
  ends.b.Abandon();
  EXPECT_EQ(WriteAndWait(&ends), IBV_WC_RETRY_EXC_ERR);
  EXPECT_THAT(ends.fake.Leaks(), SizeIs(6));  // Those of the living one.
}

TEST(FakeFaults, AReceiverIsNeverTold) {
  FakeEnds ends;
  ASSERT_EQ(ends.b.PostReceive(1), 0);
  ends.fake.KillHost(0);
  ends.a.Abandon();
  ends.fake.Advance(std::chrono::hours(1));
  EXPECT_THAT(ends.b.Poll(), SizeIs(0));
}

TEST(FakeFaults, APortThatIsDown) {
  FakeEnds ends;
  ends.fake.SetPort("fake0", 1, false);
  EXPECT_THAT(AsyncEvents(&ends.a), ElementsAre(IBV_EVENT_PORT_ERR));
  ibv_port_attr port = {};
  ASSERT_EQ(ends.a.verbs().query_port(ends.a.context(), 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_DOWN);
  EXPECT_EQ(WriteAndWait(&ends), IBV_WC_LOC_QP_OP_ERR);
  ends.fake.SetPort("fake0", 1, true);
  EXPECT_THAT(AsyncEvents(&ends.a), ElementsAre(IBV_EVENT_PORT_ACTIVE));
}

TEST(FakeFaults, ThePortOfThePeerIsDown) {
  FakeEnds ends;
  ends.fake.SetPort("fake1", 1, false);
  EXPECT_THAT(AsyncEvents(&ends.a), SizeIs(0));
  EXPECT_EQ(WriteAndWait(&ends), IBV_WC_RETRY_EXC_ERR);
}

TEST(FakeFaults, AnAddressThatIsTakenAway) {
  FakeEnds ends;
  ends.fake.SetGid("fake0", 1, 3, {});
  EXPECT_THAT(AsyncEvents(&ends.a), ElementsAre(IBV_EVENT_GID_CHANGE));
  EXPECT_EQ(WriteAndWait(&ends), IBV_WC_LOC_QP_OP_ERR);
}

TEST(FakeFaults, AnAddressThatIsAnotherNow) {
  FakeEnds ends;
  ends.fake.SetGid("fake1", 1, 4, {"10.9.0.77"});
  EXPECT_EQ(WriteAndWait(&ends), IBV_WC_RETRY_EXC_ERR);
}

TEST(FakeFaults, ADeviceThatIsPulledOut) {
  FakeEnds ends;
  ASSERT_EQ(ends.a.PostReceive(5), 0);
  ends.fake.RemoveDevice("fake0");
  EXPECT_THAT(AsyncEvents(&ends.a), ElementsAre(IBV_EVENT_DEVICE_FATAL));
  EXPECT_EQ(ends.a.Await(1).at(0).status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(ends.a.Post(ends.a.Write(ends.b, 0, 0, 1)), EIO);
  int count = 1;
  ends.a.verbs().free_device_list(ends.a.verbs().get_device_list(&count));
  EXPECT_EQ(count, 0);
}

TEST(FakeFaults, EventsAreInjected) {
  FakeEnds ends;
  ends.fake.Inject("fake1", IBV_EVENT_LID_CHANGE);
  EXPECT_THAT(AsyncEvents(&ends.b), ElementsAre(IBV_EVENT_LID_CHANGE));
  EXPECT_EQ(ends.fake.stats(1).async_events, 1U);
  ibv_async_event event = {};
  ends.b.verbs().ack_async_event(&event);
  EXPECT_THAT(ends.fake.TakeProblems(), ElementsAre(HasSubstr("more async")));
}

TEST(FakeFaults, ARefusedWriteMayRaiseAnEvent) {
  FakeVerbsOptions options = Stepped();
  options.access_events = true;
  FakeEnds ends(options);
  ibv_send_wr* const wr = ends.a.Write(ends.b, 0, 0, 1);
  wr->wr.rdma.rkey += 2;
  ASSERT_EQ(ends.a.Post(wr), 0);
  EXPECT_EQ(ends.a.Await(1).at(0).status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_THAT(AsyncEvents(&ends.b), ElementsAre(IBV_EVENT_QP_ACCESS_ERR));
  EXPECT_EQ(ends.fake.stats(1).refused_writes, 1U);
  EXPECT_EQ(ends.fake.stats(0).errors, 1U);
}

TEST(FakeFaults, AReceiverThatIsNotReadyIsAProblem) {
  FakeEnds ends;
  ASSERT_EQ(ends.a.Post(ends.a.Notice(ends.b, 0, 0, 9, 1)), 0);
  ends.fake.Advance(milliseconds(1));
  EXPECT_THAT(ends.fake.TakeProblems(),
              ElementsAre(HasSubstr("host 0 sends to host 1")));
  ASSERT_EQ(ends.b.PostReceive(1), 0);
  EXPECT_EQ(ends.a.Await(1).at(0).status, IBV_WC_SUCCESS);
  // The receiver asked for 10 us between two tries.
  EXPECT_EQ(ends.fake.Now(), milliseconds(2) + microseconds(10));
  EXPECT_EQ(ends.fake.stats(0).rnr, 1U);
  EXPECT_EQ(ends.fake.stats(1).rnr, 0U);
}

TEST(FakeFaults, ALongWriteMayNotSurviveThat) {
  FakeVerbsOptions options = Stepped();
  options.rnr_is_a_problem = false;
  options.rnr_ends_long_writes = true;
  FakeEnds ends(options);
  ASSERT_EQ(ends.a.Post(ends.a.Notice(ends.b, 0, 0, 1025, 1)), 0);
  EXPECT_EQ(ends.a.Await(1).at(0).status, IBV_WC_REM_INV_REQ_ERR);
}

TEST(FakeFaults, WhatIsLostIsSentAgain) {
  FakeVerbsOptions options = Stepped();
  options.lost = 0.3;
  FakeEnds ends(options);
  for (std::uint32_t i = 0; i < 50; ++i) {
    ASSERT_EQ(ends.b.PostReceive(i), 0);
    ASSERT_EQ(ends.a.Post(ends.a.Notice(ends.b, i, i, 1, i)), 0);
    EXPECT_EQ(ends.a.Await(1).at(0).status, IBV_WC_SUCCESS);
    EXPECT_EQ(ends.b.Await(1).at(0).wr_id, i);
  }
  EXPECT_GT(ends.fake.stats(0).retries, 5U);
  EXPECT_EQ(ends.fake.stats(0).delivered, 50U);
  EXPECT_EQ(ends.fake.stats(1).duplicates, 0U);
}

TEST(FakeFaults, WhatArrivesTwiceIsDropped) {
  FakeVerbsOptions options = Stepped();
  options.lost_acks = 1;
  FakeEnds ends(options);
  std::fill_n(ends.a.memory().begin(), 10, 'x');
  ASSERT_EQ(ends.b.PostReceive(1), 0);
  ASSERT_EQ(ends.a.Post(ends.a.Notice(ends.b, 0, 0, 10, 1)), 0);
  ends.fake.Advance(milliseconds(1));
  EXPECT_THAT(ends.b.Poll(), SizeIs(1));
  EXPECT_EQ(ends.b.memory()[0], 'x');
  ends.b.memory()[0] = 'y';
  ends.fake.Advance(2 * kTimeOut);
  EXPECT_EQ(ends.b.memory()[0], 'y');
  EXPECT_EQ(ends.fake.stats(1).duplicates, 2U);
  EXPECT_THAT(ends.b.Poll(), SizeIs(0));
  EXPECT_THAT(ends.a.Poll(), SizeIs(0));
  EXPECT_EQ(ends.a.Await(1).at(0).status, IBV_WC_RETRY_EXC_ERR);
}

TEST(FakeFaults, WhatWasSentMayNotBeTakenAwayBeforeItsAnswer) {
  FakeVerbsOptions options = Stepped();
  options.lost_acks = 1;
  FakeEnds ends(options);
  std::vector<char> data(100);
  ibv_mr* const region =
      ends.a.verbs().reg_mr(ends.a.domain(), data.data(), data.size(), 0, 0);
  ASSERT_NE(region, nullptr);
  ibv_send_wr* const wr = ends.a.Write(ends.b, 0, 0, 100);
  wr->sg_list->addr = 0;  // Where this region is said to begin.
  wr->sg_list->lkey = region->lkey;
  ASSERT_EQ(ends.a.Post(wr), 0);
  ends.fake.Advance(milliseconds(1));
  EXPECT_EQ(ends.fake.stats(0).delivered, 1U);
  ASSERT_EQ(ends.a.verbs().dereg_mr(region), 0);
  EXPECT_EQ(ends.a.Await(1).at(0).status, IBV_WC_LOC_PROT_ERR);
}

TEST(FakeFaults, AShareOfMessagesFails) {
  FakeVerbsOptions options = Stepped();
  options.failing = 0.2;
  std::vector<int> lives;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    options.seed = seed;
    FakeEnds ends(options);
    int alive = 0;
    while (WriteAndWait(&ends) == IBV_WC_SUCCESS) ++alive;
    lives.push_back(alive);
    FakeEnds again(options);
    for (int i = 0; i < alive; ++i) {
      EXPECT_EQ(WriteAndWait(&again), IBV_WC_SUCCESS);
    }
    EXPECT_EQ(WriteAndWait(&again), IBV_WC_RETRY_EXC_ERR);
  }
  std::sort(lives.begin(), lives.end());
  EXPECT_LT(lives.front(), 3);
  EXPECT_GT(lives.back(), 5);
}

}  // namespace
}  // namespace gradientflow
