#include "transports/registry/registry.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>

#include "gradientflow/base/clock.h"
#include "transports/endpoint.h"
#include "transports/rdma/settings.h"

namespace gradientflow {
namespace {

TEST(Transports, HaveNamesOfTheirOwn) {
  std::set<std::string> names = {"auto"};
  for (const TransportKind* kind : Transports()) {
    EXPECT_TRUE(names.insert(kind->name).second) << kind->name;
    EXPECT_EQ(FindTransport(kind->name), kind);
    EXPECT_NE(TransportNames().find(kind->name), std::string_view::npos);
  }
  EXPECT_EQ(FindTransport("auto"), nullptr);
  EXPECT_EQ(FindTransport(""), nullptr);
  EXPECT_EQ(FindTransport("TCP"), nullptr);
}

TEST(Transports, TheLastOneReachesEveryHost) {
  EXPECT_EQ(Transports().back()->host_id, nullptr);
}

TEST(Transports, OfOneHostHaveItsIdAndAnArena) {
  for (const TransportKind* kind : Transports()) {
    if (kind->host_id == nullptr) continue;
    EXPECT_NE(kind->host_id(), "");
    EXPECT_EQ(kind->host_id(), kind->host_id());
    const auto endpoint = kind->open({std::size_t{8} << 20, 4096});
    ASSERT_TRUE(endpoint.ok()) << endpoint.status().ToString();
    EXPECT_NE(endpoint.value()->arena(), nullptr) << kind->name;
  }
}

TEST(Transports, RefuseArgumentsThatDoNotFit) {
  TransportOptions options;
  options.arena_bytes = std::size_t{8} << 20;
  options.socket_ifname = "lo";
  const SteadyClock clock;
  for (const TransportKind* kind : Transports()) {
    auto endpoint = kind->open(options);
    // Its hardware may not be there.
    if (endpoint.status().code() == StatusCode::kUnimplemented) continue;
    ASSERT_TRUE(endpoint.ok()) << endpoint.status().ToString();
    EXPECT_NE(endpoint.value()->address(), "");
    EXPECT_EQ(endpoint.value()->address().find('\n'), std::string::npos);
    ConnectArgs args;
    args.rank = 2;
    args.size = 2;
    args.addresses.resize(2);
    args.clock = &clock;
    args.deadline = clock.Now();
    EXPECT_EQ(endpoint.value()->Connect(args).status().code(),
              StatusCode::kInvalidArgument);
    args.rank = 1;
    args.addresses.resize(3);
    EXPECT_EQ(endpoint.value()->Connect(args).status().code(),
              StatusCode::kInvalidArgument);
  }
}

TEST(Transports, HaveSettingsOfTheirOwnNameWithAValidDefault) {
  std::set<std::string_view> names;
  for (const TransportKind* kind : Transports()) {
    if (kind->settings == nullptr) continue;
    for (const TransportSetting& setting : kind->settings()) {
      const std::string begin = std::string(kind->name) + "_";
      EXPECT_EQ(setting.name.substr(0, begin.size()), begin);
      EXPECT_TRUE(names.insert(setting.name).second) << setting.name;
      EXPECT_TRUE(setting.is_valid(setting.usual)) << setting.name;
      TransportOptions options;
      EXPECT_EQ(options.Own(setting), setting.usual);
      EXPECT_TRUE(options.CheckOwn(setting).ok());
      EXPECT_FALSE(setting.expected.empty() || setting.meaning.empty());
    }
  }
}

TEST(Transports, SayWhichOfTheirSettingsIsWrong) {
  TransportOptions options;
  options.own["rdma_ports"] = "9";
  EXPECT_EQ(RdmaSettingsOf(options).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(RdmaSettingsOf(options).status().message(),
            "rdma_ports: expected an integer from 1 to 4, got '9'");
  options.own = {{"rdma_ports", "4"}, {"rdma_retry_seconds", "0.5"}};
  const auto settings = RdmaSettingsOf(options);
  ASSERT_TRUE(settings.ok());
  EXPECT_EQ(settings.value().ports, 4);
  EXPECT_EQ(settings.value().traffic_class, 0);
  EXPECT_EQ(settings.value().retry_seconds, 0.5);
}

}  // namespace
}  // namespace gradientflow
