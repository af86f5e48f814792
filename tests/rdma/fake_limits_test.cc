#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/rdma/fake_ends.h"
#include "tests/rdma/fake_verbs.h"
#include "tests/rdma/verbs_end.h"

// What the fake devices refuse: queues that are full, what is too long, and
// what is destroyed too early. Many real ones let some of that pass.
namespace gradientflow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(FakeLimits, APlaceToSendIsFreeOnceALaterCompletionWasPolled) {
  VerbsEndOptions four;
  four.sends = 4;
  FakeEnds ends(Stepped(), four);
  const auto post = [&](bool signalled) {
    ibv_send_wr* const wr = ends.a.Write(ends.b, 0, 0, 10);
    wr->send_flags = signalled ? IBV_SEND_SIGNALED : 0;
    return ends.a.Post(wr);
  };
  for (int i = 0; i < 4; ++i) ASSERT_EQ(post(i == 2), 0);
  EXPECT_EQ(post(true), ENOMEM);
  ends.Settle();
  EXPECT_EQ(post(true), ENOMEM);  // It was sent, and nobody has looked.
  EXPECT_EQ(ends.a.Poll().size(), 1U);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(post(i == 2), 0);
  EXPECT_EQ(post(true), ENOMEM);  // The fourth was never signalled.
}

TEST(FakeLimits, AQueueWithoutSignalsIsFullForEver) {
  VerbsEndOptions two;
  two.sends = 2;
  FakeEnds ends(Stepped(), two);
  for (const int error : {0, 0, ENOMEM}) {
    ibv_send_wr* const wr = ends.a.Write(ends.b, 0, 0, 10);
    wr->send_flags = 0;
    EXPECT_EQ(ends.a.Post(wr), error);
    ends.Settle();
    EXPECT_THAT(ends.a.Poll(), SizeIs(0));
  }
}

TEST(FakeLimits, APairThatSignalsAllNeedsNoFlags) {
  VerbsEndOptions all;
  all.signals_all = true;
  FakeEnds ends(Stepped(), all);
  ibv_send_wr* const wr = ends.a.Write(ends.b, 0, 0, 10);
  wr->send_flags = 0;
  ASSERT_EQ(ends.a.Post(wr), 0);
  EXPECT_EQ(ends.a.Await(1).at(0).status, IBV_WC_SUCCESS);
}

TEST(FakeLimits, APlaceToReceiveIsFreeOnceItsCompletionWasPolled) {
  VerbsEndOptions two;
  two.receives = 2;
  FakeEnds ends(Stepped(), {}, two);
  EXPECT_EQ(ends.b.PostReceive(0), 0);
  EXPECT_EQ(ends.b.PostReceive(1), 0);
  EXPECT_EQ(ends.b.PostReceive(2), ENOMEM);
  ASSERT_EQ(ends.a.Post(ends.a.Notice(ends.b, 0, 0, 1, 1)), 0);
  ends.Settle();
  EXPECT_EQ(ends.b.PostReceive(2), ENOMEM);
  EXPECT_EQ(ends.b.Poll().size(), 1U);
  EXPECT_EQ(ends.b.PostReceive(2), 0);
}

TEST(FakeLimits, ACompletionQueueThatOverflowsBreaksItsPairs) {
  VerbsEndOptions two;
  two.completions = 2;
  FakeEnds ends(Stepped(), two);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(ends.a.Post(ends.a.Write(ends.b, 0, 0, 10)), 0);
  }
  ends.Settle();
  std::vector<ibv_event_type> types;
  while (IsReadable(ends.a.context()->async_fd)) {
    ibv_async_event event = {};
    ASSERT_EQ(ends.a.verbs().get_async_event(ends.a.context(), &event), 0);
    types.push_back(event.event_type);
    ends.a.verbs().ack_async_event(&event);
  }
  EXPECT_THAT(types, ElementsAre(IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL));
  EXPECT_EQ(ends.a.Poll().size(), 2U);
  ASSERT_EQ(ends.a.Post(ends.a.Write(ends.b, 0, 0, 10)), 0);
  ends.Settle();
  EXPECT_THAT(ends.a.Poll(), SizeIs(0));
}

TEST(FakeLimits, RequestsThatDoNotFit) {
  FakeEnds ends;
  ibv_send_wr* wr = ends.a.Write(ends.b, 0, 0, 33);
  wr->send_flags |= IBV_SEND_INLINE;
  EXPECT_EQ(ends.a.Post(wr), EINVAL);  // 32 bytes were asked for.
  std::array<ibv_sge, 3> three = {};
  wr = ends.a.Write(ends.b, 0, 0, 1);
  wr->sg_list = three.data();
  wr->num_sge = 3;
  EXPECT_EQ(ends.a.Post(wr), EINVAL);  // Two were.
  for (const ibv_wr_opcode opcode :
       {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_BIND_MW}) {
    wr = ends.a.Write(ends.b, 0, 0, 8);
    wr->opcode = opcode;
    EXPECT_EQ(ends.a.Post(wr), EINVAL);
  }
  // Those before a bad one go.
  ibv_send_wr bad = *wr;
  wr = ends.a.Write(ends.b, 0, 0, 8);
  wr->next = &bad;
  ibv_send_wr* said = nullptr;
  EXPECT_EQ(ends.a.verbs().post_send(ends.a.pair(), wr, &said), EINVAL);
  EXPECT_EQ(said, &bad);
  EXPECT_EQ(ends.a.Await(1).at(0).status, IBV_WC_SUCCESS);
  EXPECT_EQ(ends.fake.stats(0).writes, 1U);
}

TEST(FakeLimits, PairsThatDoNotFitTheDevice) {
  FakeEnds ends;
  const auto error = [&](auto change) {
    ibv_qp_init_attr wanted = {};
    wanted.send_cq = wanted.recv_cq = ends.a.queue();
    wanted.qp_type = IBV_QPT_RC;
    change(&wanted);
    ibv_qp* const pair = ends.a.verbs().create_qp(ends.a.domain(), &wanted);
    if (pair == nullptr) return errno;
    ends.a.verbs().destroy_qp(pair);
    return 0;
  };
  EXPECT_EQ(error([](ibv_qp_init_attr*) {}), 0);
  EXPECT_EQ(error([](auto* w) { w->cap.max_send_wr = 4096; }), 0);
  EXPECT_EQ(error([](auto* w) { w->cap.max_send_wr = 4097; }), EINVAL);
  EXPECT_EQ(error([](auto* w) { w->cap.max_recv_wr = 4097; }), EINVAL);
  EXPECT_EQ(error([](auto* w) { w->cap.max_send_sge = 9; }), EINVAL);
  EXPECT_EQ(error([](auto* w) { w->cap.max_inline_data = 257; }), EINVAL);
  EXPECT_EQ(error([](auto* w) { w->send_cq = nullptr; }), EINVAL);
  EXPECT_EQ(error([](auto* w) { w->qp_type = IBV_QPT_UD; }), EOPNOTSUPP);
  const VerbsApi& verbs = ends.a.verbs();
  ibv_context* const context = ends.a.context();
  EXPECT_EQ(verbs.create_cq(context, (1 << 16) + 1, nullptr, nullptr, 0),
            nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(verbs.create_cq(context, 8, nullptr, nullptr, 1), nullptr);
}

// The pages that these bytes touch.
std::size_t Pages(std::uintptr_t at, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  return (at + bytes + page - 1) / page - at / page;
}

TEST(FakeLimits, LockedMemoryIsCountedInPages) {
  FakeEnds ends;
  const VerbsApi& verbs = ends.a.verbs();
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<char> data(4 * page);
  const auto reg = [&](std::size_t pages, std::size_t bytes) {
    const auto at =
        (reinterpret_cast<std::uintptr_t>(data.data()) / page + 1 + pages) *
        page;
    return verbs.reg_mr(ends.a.domain(), reinterpret_cast<void*>(at), bytes, at,
                        IBV_ACCESS_LOCAL_WRITE);
  };
  const std::size_t held = Pages(ends.a.At(0), ends.a.memory().size());
  ends.fake.SetMemlock(0, (held + 3) * page);
  ibv_mr* const two = reg(0, page + 1);
  ASSERT_NE(two, nullptr);
  EXPECT_NE(two->lkey, two->rkey);
  EXPECT_EQ(reg(1, page + 1), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  ibv_mr* const one = reg(1, page);
  ASSERT_NE(one, nullptr);
  EXPECT_EQ(reg(0, 1), nullptr);
  EXPECT_EQ(verbs.dereg_mr(two), 0);
  EXPECT_EQ(verbs.dereg_mr(one), 0);
  const FakeVerbsStats stats = ends.fake.stats(0);
  EXPECT_EQ(stats.registrations, 3U);
  EXPECT_EQ(stats.deregistrations, 2U);
  EXPECT_EQ(stats.registered_bytes, ends.a.memory().size());
  EXPECT_EQ(stats.most_registered_bytes, ends.a.memory().size() + 2 * page + 1);
  EXPECT_EQ(stats.access_granted,
            unsigned{IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE});
}

TEST(FakeLimits, ADmaBufIsRegisteredByItsDescriptor) {
  FakeEnds ends;
  const VerbsApi& verbs = ends.b.verbs();
  const int fd = ::memfd_create("dma-buf", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(fd, 1 << 16), 0);
  constexpr std::uint64_t kOffset = 4096;
  constexpr std::uint64_t kAddress = 0x7000000;
  ibv_mr* const region =
      verbs.reg_dmabuf_mr(ends.b.domain(), kOffset, 8192, kAddress, fd,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  ASSERT_NE(region, nullptr);
  std::memcpy(ends.a.memory().data(), "gradient", 8);
  ibv_send_wr* const wr = ends.a.Write(ends.b, 0, 0, 8);
  wr->wr.rdma.remote_addr = kAddress + 100;
  wr->wr.rdma.rkey = region->rkey;
  ASSERT_EQ(ends.a.Post(wr), 0);
  EXPECT_EQ(ends.a.Await(1).at(0).status, IBV_WC_SUCCESS);
  std::array<char, 8> seen = {};
  ASSERT_EQ(::pread(fd, seen.data(), 8, kOffset + 100), 8);
  EXPECT_EQ(std::memcmp(seen.data(), "gradient", 8), 0);
  EXPECT_EQ(verbs.dereg_mr(region), 0);
  ::close(fd);
  EXPECT_EQ(verbs.reg_dmabuf_mr(ends.b.domain(), 0, 4096, 0, -1, 1), nullptr);
  EXPECT_EQ(errno, EBADF);
}

TEST(FakeLimits, ADeviceMayKnowNoDmaBuf) {
  FakeVerbs fake(0);
  FakeHost host = UsualHost(0);
  host.devices[0].dma_buf = false;
  host.devices[0].max_mr_bytes = 1000;
  VerbsEndOptions small;
  small.bytes = 1000;
  VerbsEnd end(
      fake.api(fake.AddHost(host)), "fake0", [] {}, small);
  EXPECT_EQ(end.verbs().reg_dmabuf_mr(end.domain(), 0, 10, 0, -1, 1), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  std::array<char, 1001> long_one = {};
  EXPECT_EQ(end.verbs().reg_mr(end.domain(), long_one.data(), 1001, 0, 1),
            nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST(FakeLimits, EventsThatNobodyAcknowledgedAreAProblem) {
  FakeVerbs fake(2, Stepped());
  for (const unsigned acknowledged : {0U, 1U, 2U}) {
    VerbsEnd a(fake.api(0), "fake0", [&] { fake.Step(); });
    auto b =
        std::make_unique<VerbsEnd>(fake.api(1), "fake1", [&] { fake.Step(); });
    a.Connect(b->address());
    b->Connect(a.address());
    const VerbsApi& verbs = b->verbs();
    ASSERT_EQ(verbs.req_notify_cq(b->queue(), 0), 0);
    ASSERT_EQ(b->PostReceive(1), 0);
    ASSERT_EQ(a.Post(a.Notice(*b, 0, 0, 1, 1)), 0);
    EXPECT_EQ(b->Await(1).size(), 1U);
    ibv_cq* queue = nullptr;
    void* owner = nullptr;
    ASSERT_EQ(verbs.get_cq_event(b->channel(), &queue, &owner), 0);
    verbs.ack_cq_events(queue, acknowledged);
    EXPECT_THAT(fake.TakeProblems(), SizeIs(acknowledged == 2 ? 1 : 0));
    b.reset();
    EXPECT_THAT(fake.TakeProblems(), SizeIs(acknowledged == 1 ? 0 : 1));
  }
}

TEST(FakeLimits, WhatWasNotDestroyedIsListed) {
  FakeVerbs fake(2);
  {
    VerbsEnd end(fake.api(1), "fake1", [] {});
    EXPECT_THAT(fake.Leaks(),
                ElementsAre("host 1: 1 open devices not destroyed",
                            "host 1: 1 protection domains not destroyed",
                            "host 1: 1 memory regions not destroyed",
                            "host 1: 1 completion channels not destroyed",
                            "host 1: 1 completion queues not destroyed",
                            "host 1: 1 queue pairs not destroyed"));
    EXPECT_EQ(end.verbs().close_device(end.context()), EBUSY);
  }
  EXPECT_THAT(fake.Leaks(), SizeIs(0));
  int count = 0;
  ibv_device** const list = fake.api(0)->get_device_list(&count);
  EXPECT_EQ(count, 1);
  EXPECT_THAT(fake.Leaks(), ElementsAre(HasSubstr("lists of devices")));
  fake.api(0)->free_device_list(list);
}

}  // namespace
}  // namespace gradientflow
