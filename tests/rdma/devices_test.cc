#include "transports/rdma/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "transports/rdma/verbs_api.h"

namespace gradientflow {
namespace {

using ::testing::HasSubstr;

// What a machine has: the verbs calls answer from it. C functions know no
// object, so there is one machine at a time.
struct Machine {
  std::vector<ibv_device> devices;
  std::vector<ibv_port_attr> ports;  // Of each device.
  std::vector<ibv_gid_entry> gids;   // Of each device.
  int no_list = 0;                   // These are an errno, or 0.
  int no_open = 0;
  int no_port = 0;
  int no_gids = 0;
  int no_pd = 0;
  int dma_buf = EBADF;
  int held = 0;  // Lists, contexts and domains that were not given back.
};
Machine* machine = nullptr;

void ListAndOpen(VerbsApi* api) {
  api->get_device_list = [](int* count) -> ibv_device** {
    errno = machine->no_list;
    if (machine->no_list != 0) return nullptr;
    ++machine->held;
    *count = static_cast<int>(machine->devices.size());
    auto* const list = new ibv_device*[machine->devices.size() + 1]();
    for (int i = 0; i < *count; ++i) {
      list[i] = &machine->devices[static_cast<std::size_t>(i)];
    }
    return list;
  };
  api->free_device_list = [](ibv_device** list) {
    --machine->held;
    delete[] list;
  };
  api->open_device = [](ibv_device* device) -> ibv_context* {
    errno = machine->no_open;
    if (machine->no_open != 0) return nullptr;
    ++machine->held;
    auto* const context = new ibv_context();
    context->device = device;
    return context;
  };
  api->close_device = [](ibv_context* context) {
    --machine->held;
    delete context;
    return 0;
  };
}

void Ask(VerbsApi* api) {
  api->query_device = [](ibv_context*, ibv_device_attr* out) {
    out->phys_port_cnt = static_cast<std::uint8_t>(machine->ports.size());
    return 0;
  };
  api->query_port = [](ibv_context*, std::uint8_t port, ibv_port_attr* out) {
    *out = machine->ports.at(port - 1U);
    return machine->no_port;
  };
  api->query_gids = [](ibv_context*, ibv_gid_entry* out,
                       std::size_t room) -> ssize_t {
    if (machine->no_gids != 0) return -machine->no_gids;
    const std::size_t count = machine->gids.size();
    if (room < count) return -EINVAL;
    std::copy_n(machine->gids.begin(), count, out);
    return static_cast<ssize_t>(count);
  };
}

void Register(VerbsApi* api) {
  api->alloc_pd = [](ibv_context*) -> ibv_pd* {
    errno = machine->no_pd;
    if (machine->no_pd != 0) return nullptr;
    ++machine->held;
    return new ibv_pd();
  };
  api->dealloc_pd = [](ibv_pd* pd) {
    --machine->held;
    delete pd;
    return 0;
  };
  api->reg_dmabuf_mr = [](ibv_pd*, std::uint64_t, std::size_t, std::uint64_t,
                          int fd, int) -> ibv_mr* {
    EXPECT_EQ(fd, -1);
    errno = machine->dma_buf;
    return nullptr;
  };
}

VerbsApi Api() {
  VerbsApi api;
  api.path = "the test";
  ListAndOpen(&api);
  Ask(&api);
  Register(&api);
  return api;
}

ibv_gid_entry Gid(std::uint32_t port, std::uint32_t index, ibv_gid_type type,
                  std::array<std::uint8_t, 16> bytes) {
  ibv_gid_entry entry = {};
  entry.port_num = port;
  entry.gid_index = index;
  entry.gid_type = type;
  entry.ndev_ifindex = 7;
  std::copy(bytes.begin(), bytes.end(), entry.gid.raw);
  return entry;
}

constexpr std::array<std::uint8_t, 16> kLinkLocal = {
    0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xFF, 0xFE, 0x12, 0x34, 0x56};
constexpr std::array<std::uint8_t, 16> kFourTwo = {
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 0, 4, 2};

class RdmaDevices : public ::testing::Test {
 protected:
  RdmaDevices() {
    machine = &machine_;
    machine_.devices.resize(1);
    std::strcpy(machine_.devices[0].name, "mlx5_3");
    ibv_port_attr port = {};
    port.state = IBV_PORT_ACTIVE;
    port.active_mtu = IBV_MTU_4096;
    port.link_layer = IBV_LINK_LAYER_ETHERNET;
    port.gid_tbl_len = 2;
    port.active_width = 2;
    port.active_speed = 32;
    machine_.ports = {port};
  }
  ~RdmaDevices() override {
    EXPECT_EQ(machine_.held, 0);
    machine = nullptr;
  }

  // The only device.
  RdmaDevice List() {
    const auto devices = ListRdmaDevices(Api());
    EXPECT_TRUE(devices.ok()) << devices.status().ToString();
    if (!devices.ok() || devices.value().size() != 1) return RdmaDevice();
    return devices.value()[0];
  }

  Machine machine_;
};

TEST_F(RdmaDevices, PortsAndAddresses) {
  ibv_port_attr infiniband = {};
  infiniband.state = IBV_PORT_DOWN;
  infiniband.active_mtu = IBV_MTU_256;
  infiniband.link_layer = IBV_LINK_LAYER_INFINIBAND;
  infiniband.lid = 77;
  infiniband.gid_tbl_len = 1;
  machine_.ports.push_back(infiniband);
  machine_.gids = {Gid(1, 0, IBV_GID_TYPE_ROCE_V1, kLinkLocal),
                   Gid(1, 3, IBV_GID_TYPE_ROCE_V2, kFourTwo),
                   Gid(2, 0, IBV_GID_TYPE_IB, kLinkLocal)};
  const RdmaDevice device = List();
  EXPECT_EQ(device.name, "mlx5_3");
  EXPECT_EQ(device.problem, "");
  ASSERT_EQ(device.ports.size(), 2U);
  const RdmaPort& first = device.ports[0];
  EXPECT_EQ(first.number, 1);
  EXPECT_TRUE(first.active);
  EXPECT_TRUE(first.ethernet);
  EXPECT_EQ(first.mtu, 4096);
  EXPECT_EQ(first.gbps, 100);
  ASSERT_EQ(first.gids.size(), 2U);
  EXPECT_TRUE(first.gids[0].is_link_local());
  EXPECT_FALSE(first.gids[0].is_ipv4());
  EXPECT_EQ(first.gids[0].ToString(), "fe80::5054:ff:fe12:3456");
  EXPECT_EQ(first.gids[1].index, 3);
  EXPECT_EQ(first.gids[1].interface, 7U);
  EXPECT_TRUE(first.gids[1].is_ipv4());
  EXPECT_FALSE(first.gids[1].is_link_local());
  EXPECT_EQ(first.gids[1].ToString(), "10.0.4.2");
  EXPECT_STREQ(Name(first.gids[1].type), "RoCE v2");
  const RdmaPort& second = device.ports[1];
  EXPECT_EQ(second.number, 2);
  EXPECT_FALSE(second.active);
  EXPECT_EQ(second.state, "down");
  EXPECT_FALSE(second.ethernet);
  EXPECT_EQ(second.mtu, 256);
  EXPECT_EQ(second.gbps, 0);
  EXPECT_EQ(second.lid, 77);
  EXPECT_EQ(second.gids.size(), 1U);
}

TEST_F(RdmaDevices, RatesOfAllWidthsAndSpeeds) {
  const std::vector<std::pair<int, int>> widths = {
      {1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}, {0, 0}, {3, 0}};
  const std::vector<std::pair<int, double>> speeds = {
      {1, 2.5}, {2, 5},   {4, 10},    {8, 10}, {16, 14},
      {32, 25}, {64, 50}, {128, 100}, {0, 0}};
  for (const auto& [width, lanes] : widths) {
    for (const auto& [speed, gbps] : speeds) {
      machine_.ports[0].active_width = static_cast<std::uint8_t>(width);
      machine_.ports[0].active_speed = static_cast<std::uint8_t>(speed);
      EXPECT_EQ(List().ports.at(0).gbps, lanes * gbps) << width << " " << speed;
    }
  }
}

TEST_F(RdmaDevices, ADeviceThatCannotBeUsedSaysWhy) {
  machine_.no_open = EACCES;
  EXPECT_THAT(List().problem, HasSubstr("cannot be opened: Permission denied"));
  EXPECT_THAT(List().problem, HasSubstr("/dev/infiniband"));
  machine_.no_open = ENODEV;
  EXPECT_EQ(List().problem, "cannot be opened: No such device");
  machine_.no_open = 0;
  machine_.no_port = EOPNOTSUPP;
  EXPECT_EQ(List().problem, "cannot be asked: Operation not supported");
  machine_.no_port = 0;
  machine_.no_gids = EINVAL;
  EXPECT_EQ(List().problem, "cannot be asked: Invalid argument");
  EXPECT_TRUE(List().ports.empty());
}

TEST_F(RdmaDevices, TheKernelMayHaveNone) {
  machine_.no_list = ENOSYS;
  const auto devices = ListRdmaDevices(Api());
  ASSERT_FALSE(devices.ok());
  EXPECT_EQ(devices.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(devices.status().message(), HasSubstr("not implemented"));
  machine_.no_list = 0;
  machine_.devices.clear();
  const auto none = ListRdmaDevices(Api());
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none.value().empty());
}

TEST_F(RdmaDevices, DmaBufIsProbedByADescriptorThatIsNone) {
  EXPECT_TRUE(List().dma_buf);
  machine_.dma_buf = EOPNOTSUPP;
  EXPECT_FALSE(List().dma_buf);
  EXPECT_EQ(List().no_dma_buf, "Operation not supported");
  machine_.no_pd = ENOMEM;
  EXPECT_FALSE(List().dma_buf);
  EXPECT_EQ(List().no_dma_buf, "Cannot allocate memory");
  machine_.no_pd = 0;
  VerbsApi old = Api();
  old.reg_dmabuf_mr = nullptr;
  const auto devices = ListRdmaDevices(old);
  ASSERT_TRUE(devices.ok());
  EXPECT_FALSE(devices.value().at(0).dma_buf);
  EXPECT_THAT(devices.value().at(0).no_dma_buf, HasSubstr("rdma-core"));
}

// What there is on this machine is not known, but there is always an answer.
TEST(Verbs, TheLibraryLoadsOrSaysWhyNot) {
  const auto verbs = LoadVerbs();
  if (verbs.ok()) {
    EXPECT_THAT(verbs.value()->path, HasSubstr("libibverbs"));
    EXPECT_NE(verbs.value()->create_qp, nullptr);
    EXPECT_NE(verbs.value()->post_send, nullptr);
  } else {
    EXPECT_EQ(verbs.status().code(), StatusCode::kUnimplemented);
    EXPECT_THAT(verbs.status().message(), HasSubstr("libibverbs"));
  }
  EXPECT_NE(RdmaText("  "), "");
}

}  // namespace
}  // namespace gradientflow
