#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "tests/rdma/fake_ends.h"
#include "tests/rdma/fake_verbs.h"
#include "tests/rdma/verbs_end.h"
#include "transports/rdma/devices.h"

// How pairs of fake devices come to be connected, and what is no connection.
namespace gradientflow {
namespace {

// Two ends whose pairs are new.
struct NewEnds {
  NewEnds()
      : fake(2, Stepped()),
        a(fake.api(0), "fake0", [this] { fake.Step(); }),
        b(fake.api(1), "fake1", [this] { fake.Step(); }) {}

  int Modify(ibv_qp_attr set, int mask) {
    return a.verbs().modify_qp(a.pair(), &set, mask);
  }

  FakeVerbs fake;
  VerbsEnd a;
  VerbsEnd b;
};

TEST(FakeConnect, DevicesAreListedAsOthersAre) {
  FakeVerbs fake(3);
  const auto devices = ListRdmaDevices(*fake.api(2));
  ASSERT_TRUE(devices.ok());
  ASSERT_EQ(devices.value().size(), 1U);
  const RdmaDevice& device = devices.value()[0];
  EXPECT_EQ(device.name, "fake2");
  EXPECT_EQ(device.problem, "");
  EXPECT_TRUE(device.dma_buf);
  const RdmaPort& port = device.ports.at(0);
  EXPECT_TRUE(port.active);
  EXPECT_TRUE(port.ethernet);
  EXPECT_EQ(port.mtu, 1024);
  ASSERT_EQ(port.gids.size(), 4U);
  EXPECT_TRUE(port.gids[0].is_link_local());
  EXPECT_EQ(port.gids[2].type, IBV_GID_TYPE_ROCE_V1);
  EXPECT_EQ(port.gids[3].type, IBV_GID_TYPE_ROCE_V2);
  EXPECT_EQ(port.gids[3].index, 5);  // Two have no address.
  EXPECT_EQ(port.gids[3].ToString(), "10.9.0.3");
}

TEST(FakeConnect, EachAttributeOfATransitionIsRequired) {
  NewEnds ends;
  const auto all_but_one = [&](const ibv_qp_attr& set, int mask) {
    for (int bit = 1; bit <= mask; bit *= 2) {
      if ((mask & bit) == 0 || bit == IBV_QP_STATE) continue;
      EXPECT_EQ(ends.Modify(set, mask & ~bit), EINVAL) << bit;
    }
    EXPECT_EQ(ends.Modify(set, mask | IBV_QP_QKEY), EINVAL);
    EXPECT_EQ(ends.Modify(set, mask), 0);
  };
  ibv_qp_attr init = {};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = 1;
  init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  all_but_one(init, VerbsEnd::kInitMask);
  all_but_one(ends.a.Receiving(ends.b.address()), VerbsEnd::kReceivingMask);
  all_but_one(ends.a.Sending(1), VerbsEnd::kSendingMask);
  EXPECT_EQ(ends.a.pair()->state, IBV_QPS_RTS);
}

TEST(FakeConnect, ValuesThatNoDeviceTakes) {
  NewEnds ends;
  ends.a.Init();
  const auto receiving = [&](auto change) {
    ibv_qp_attr set = ends.a.Receiving(ends.b.address());
    change(&set);
    return ends.Modify(set, VerbsEnd::kReceivingMask);
  };
  EXPECT_EQ(receiving([](auto* s) { s->path_mtu = IBV_MTU_2048; }), EINVAL);
  EXPECT_EQ(receiving([](auto* s) { s->dest_qp_num = 1 << 24; }), EINVAL);
  EXPECT_EQ(receiving([](auto* s) { s->rq_psn = 1 << 24; }), EINVAL);
  EXPECT_EQ(receiving([](auto* s) { s->min_rnr_timer = 32; }), EINVAL);
  EXPECT_EQ(receiving([](auto* s) { s->ah_attr.port_num = 2; }), EINVAL);
  EXPECT_EQ(receiving([](auto* s) { s->ah_attr.is_global = 0; }), EINVAL);
  EXPECT_EQ(receiving([](auto* s) { s->ah_attr.grh.sgid_index = 9; }), EINVAL);
  EXPECT_EQ(receiving([](auto* s) { s->ah_attr.grh.hop_limit = 0; }), EINVAL);
  EXPECT_EQ(receiving([](auto*) {}), 0);
  const auto sending = [&](auto change) {
    ibv_qp_attr set = ends.a.Sending(1);
    change(&set);
    return ends.Modify(set, VerbsEnd::kSendingMask);
  };
  EXPECT_EQ(sending([](auto* s) { s->retry_cnt = 8; }), EINVAL);
  EXPECT_EQ(sending([](auto* s) { s->rnr_retry = 8; }), EINVAL);
  EXPECT_EQ(sending([](auto* s) { s->timeout = 32; }), EINVAL);
  EXPECT_EQ(sending([](auto* s) { s->max_rd_atomic = 17; }), EINVAL);
  EXPECT_EQ(sending([](auto*) {}), 0);
}

// b is connected as it should be, a not quite.
ibv_wc_status WithAnotherAddress(std::uint8_t index, const char* address) {
  NewEnds ends;
  ends.a.Init();
  ibv_qp_attr set = ends.a.Receiving(ends.b.address());
  set.ah_attr.grh.sgid_index = index;
  if (address != nullptr) ends.fake.SetGid("fake1", 1, 9, {address});
  if (address != nullptr) set.ah_attr.grh.dgid.raw[15] += 100;
  EXPECT_EQ(ends.Modify(set, VerbsEnd::kReceivingMask), 0);
  EXPECT_EQ(ends.a.ToSend(ends.a.address().psn), 0);
  ends.b.Connect(ends.a.address());
  EXPECT_EQ(ends.a.Post(ends.a.Write(ends.b, 0, 0, 1)), 0);
  return ends.a.Await(1).at(0).status;
}

TEST(FakeConnect, AddressesAreThoseThatThePeerKnows) {
  EXPECT_EQ(WithAnotherAddress(3, nullptr), IBV_WC_SUCCESS);
  // Another kind: the same address by RoCE v1, and a link-local one.
  EXPECT_EQ(WithAnotherAddress(2, nullptr), IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(WithAnotherAddress(1, nullptr), IBV_WC_RETRY_EXC_ERR);
  // The peer has this one, too, but answers from another.
  EXPECT_EQ(WithAnotherAddress(3, "10.9.0.102"), IBV_WC_RETRY_EXC_ERR);
}

// Its messages do not say which pair they come from, so devices would take
// them. But the answers would go to the other one.
TEST(FakeConnect, APeerThatIsConnectedToAnotherPairDoesNotHear) {
  NewEnds ends;
  VerbsEnd other(ends.fake.api(0), "fake0", [] {});
  ends.a.Connect(ends.b.address());
  VerbsAddress of_other = other.address();
  of_other.psn = ends.a.address().psn;
  ends.b.Connect(of_other);
  ASSERT_EQ(ends.a.Post(ends.a.Write(ends.b, 0, 0, 1)), 0);
  EXPECT_EQ(ends.a.Await(1).at(0).status, IBV_WC_RETRY_EXC_ERR);
}

TEST(FakeConnect, PacketsOfAnotherSizeThanThePeersAreInvalid) {
  for (const bool longer : {true, false}) {
    NewEnds ends;
    VerbsEnd& from = longer ? ends.a : ends.b;
    VerbsEnd& to = longer ? ends.b : ends.a;
    ends.a.Connect(ends.b.address());
    ends.b.Init();
    ibv_qp_attr set = ends.b.Receiving(ends.a.address());
    set.path_mtu = IBV_MTU_256;
    ASSERT_EQ(
        ends.b.verbs().modify_qp(ends.b.pair(), &set, VerbsEnd::kReceivingMask),
        0);
    ASSERT_EQ(ends.b.ToSend(ends.b.address().psn), 0);
    ASSERT_EQ(from.Post(from.Write(to, 0, 0, 256)), 0);
    EXPECT_EQ(from.Await(1).at(0).status, IBV_WC_SUCCESS);
    ASSERT_EQ(from.Post(from.Write(to, 0, 0, 257)), 0);
    EXPECT_EQ(from.Await(1).at(0).status, IBV_WC_REM_INV_REQ_ERR);
  }
}

TEST(FakeConnect, InfiniBandHasLids) {
  FakeVerbs fake(0, Stepped());
  for (int i = 0; i < 2; ++i) {
    FakeHost host = UsualHost(i);
    host.devices[0].ports[0].ethernet = false;
    host.devices[0].ports[0].lid = static_cast<std::uint16_t>(30 + i);
    fake.AddHost(host);
  }
  const auto step = [&fake] { fake.Step(); };
  for (const int wrong : {0, 1}) {
    VerbsEnd a(fake.api(0), "fake0", step);
    VerbsEnd b(fake.api(1), "fake1", step);
    VerbsAddress of_b = b.address();
    of_b.lid = static_cast<std::uint16_t>(of_b.lid + wrong);
    a.Connect(of_b);
    b.Connect(a.address());
    ASSERT_EQ(a.Post(a.Write(b, 0, 0, 100)), 0);
    EXPECT_EQ(a.Await(1).at(0).status,
              wrong == 0 ? IBV_WC_SUCCESS : IBV_WC_RETRY_EXC_ERR);
  }
}

TEST(FakeConnect, ADeviceReachesItself) {
  FakeVerbs fake(1, Stepped());
  const auto step = [&fake] { fake.Step(); };
  VerbsEnd a(fake.api(0), "fake0", step);
  VerbsEnd b(fake.api(0), "fake0", step);
  a.Connect(b.address());
  b.Connect(a.address());
  a.memory()[0] = 3;
  ASSERT_EQ(a.Post(a.Write(b, 0, 0, 1)), 0);
  EXPECT_EQ(a.Await(1).at(0).status, IBV_WC_SUCCESS);
  EXPECT_EQ(b.memory()[0], 3);
}

TEST(FakeConnect, APairThatIsResetBeginsAgain) {
  FakeEnds ends;
  ends.fake.FailMessage(0, 1, IBV_WC_GENERAL_ERR);
  ASSERT_EQ(ends.a.Post(ends.a.Write(ends.b, 0, 0, 1)), 0);
  EXPECT_EQ(ends.a.Await(1).at(0).status, IBV_WC_GENERAL_ERR);
  for (int round = 0; round < 3; ++round) {
    for (VerbsEnd* const end : {&ends.a, &ends.b}) {
      ibv_qp_attr set = {};
      set.qp_state = IBV_QPS_RESET;
      ASSERT_EQ(end->verbs().modify_qp(end->pair(), &set, IBV_QP_STATE), 0);
      EXPECT_EQ(end->PostReceive(1), EINVAL);
    }
    ends.a.Connect(ends.b.address());
    ends.b.Connect(ends.a.address());
    ASSERT_EQ(ends.a.Post(ends.a.Write(ends.b, 0, 0, 5000)), 0);
    EXPECT_EQ(ends.a.Await(1).at(0).status, IBV_WC_SUCCESS);
    // These are forgotten, with what is under way.
    ASSERT_EQ(ends.b.PostReceive(1), 0);
    ASSERT_EQ(ends.a.Post(ends.a.Notice(ends.b, 0, 0, 5000, 1)), 0);
  }
  EXPECT_TRUE(ends.b.Poll().empty());
}

TEST(FakeConnect, CompletionsOfADestroyedPairStayOrGo) {
  for (const bool drop : {false, true}) {
    FakeVerbsOptions options = Stepped();
    options.drop_completions_of_destroyed = drop;
    FakeEnds ends(options);
    ASSERT_EQ(ends.a.Post(ends.a.Write(ends.b, 0, 0, 1)), 0);
    ends.Settle();
    ends.a.DestroyPair();
    EXPECT_EQ(ends.a.Poll().size(), drop ? 0U : 1U);
  }
}

TEST(FakeConnect, ManyNetworksAtOnce) {
  std::vector<std::unique_ptr<FakeEnds>> all;
  for (int i = 0; i < 30; ++i) all.push_back(std::make_unique<FakeEnds>());
  for (const auto& ends : all) {
    int count = 0;
    ibv_device** const list = ends->fake.api(1)->get_device_list(&count);
    ASSERT_EQ(count, 1);
    EXPECT_EQ(list[0], ends->b.context()->device);
    ends->fake.api(1)->free_device_list(list);
  }
}

}  // namespace
}  // namespace gradientflow
