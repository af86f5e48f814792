#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/secret.h"
#include "tests/transports/link_owner.h"
#include "transports/arena.h"
#include "transports/endpoint.h"
#include "transports/shm/create.h"

// Endpoints whose peers do not connect.
namespace gradientflow {
namespace {

using testing::LinkOwner;

constexpr std::size_t kArena = std::size_t{16} << 20;
constexpr std::size_t kFifo = 8192;

// Without addresses of others.
ConnectArgs ArgsOfFour(int rank, const Clock& clock, LinkOwner* end) {
  return {rank,          4,           std::vector<std::string>(4),
          Bits256{},     clock.Now(), &clock,
          end->poller(), end};
}

TEST(ShmEndpoint, AloneOnItsHostHasAnArenaAndNoLinks) {
  auto host = kShmTransport.open({kArena, kFifo});
  ASSERT_TRUE(host.ok()) << host.status().ToString();
  LinkOwner end;
  SteadyClock clock;
  ConnectArgs args = ArgsOfFour(2, clock, &end);
  auto links = host.value()->Connect(args);
  ASSERT_TRUE(links.ok()) << links.status().ToString();
  ASSERT_EQ(links.value().size(), 4U);
  for (const auto& link : links.value()) EXPECT_EQ(link, nullptr);
  EXPECT_EQ(host.value()->arena()->members(), std::vector<int>{2});
  EXPECT_TRUE(host.value()->arena()->Allocate(100).ok());
  EXPECT_EQ(host.value()->Connect(args).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST(ShmEndpoint, RefusesArgumentsThatDoNotFit) {
  LinkOwner end;
  SteadyClock clock;
  auto host = std::move(kShmTransport.open({kArena, kFifo})).value();
  ConnectArgs args = ArgsOfFour(4, clock, &end);
  EXPECT_EQ(host->Connect(args).status().code(), StatusCode::kInvalidArgument);
  args.rank = 1;
  args.addresses.resize(3);
  EXPECT_EQ(host->Connect(args).status().code(), StatusCode::kInvalidArgument);
}

// A higher rank is awaited, and yet its end is seen at once.
TEST(ShmEndpoint, PeersThatHaveEndedAreNamedAtOnce) {
  for (const int peer : {0, 2}) {
    LinkOwner end;
    SteadyClock clock;
    ConnectArgs args = ArgsOfFour(1, clock, &end);
    args.addresses[peer] = "nobody listens here";
    args.deadline = clock.Now() + std::chrono::seconds(30);
    auto host = std::move(kShmTransport.open({kArena, kFifo})).value();
    const Status seen = host->Connect(args).status();
    EXPECT_EQ(seen.code(), StatusCode::kUnavailable);
    EXPECT_NE(seen.message().find("rank 1 to rank " + std::to_string(peer)),
              std::string::npos)
        << seen.message();
  }
}

}  // namespace
}  // namespace gradientflow
