#include "transports/registry/registry.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "gradientflow/base/clock.h"
#include "transports/endpoint.h"

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

}  // namespace
}  // namespace gradientflow
