#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/communicator/card.h"
#include "gradientflow/communicator/transport.h"
#include "gradientflow/config/options.h"
#include "gradientflow/observe/logger.h"
#include "transports/tcp/addresses.h"
#include "transports/tcp/socket.h"

// What a rank says as it joins a job.
namespace gradientflow {
namespace {

class Warnings final : public Logger {
 public:
  bool Enabled(LogLevel) const override { return true; }
  void Log(LogLevel level, const std::string& line) override {
    const std::lock_guard lock(mutex_);
    if (level == LogLevel::kWarning) lines_.push_back(line);
  }
  std::ptrdiff_t Count(const std::string& part) const {
    const std::lock_guard lock(mutex_);
    return std::count_if(lines_.begin(), lines_.end(), [&](const auto& line) {
      return line.find(part) != std::string::npos;
    });
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

// The warnings about the token of a rank that comes alone.
std::ptrdiff_t WarningsOf(int rank, const std::string& host,
                          const std::string& token,
                          const std::string& guessable) {
  const Socket socket =
      ListenOn(*SocketAddress::Parse("127.0.0.1:0"), 0).value();
  Options options;
  options.rank = rank;
  options.size = 2;
  options.rendezvous = host + ":" + std::to_string(LocalAddress(socket).port());
  options.job_token = token;
  options.guessable_token = guessable;
  options.fabric = "tcp";
  options.socket_ifname = "lo";
  options.join_timeout_seconds = 0.02;
  const SteadyClock clock;
  Warnings warnings;
  JoinArgs args;
  args.options = &options;
  args.clock = &clock;
  args.logger = &warnings;
  EXPECT_FALSE(Join(args).ok());
  return warnings.Count("GRADIENTFLOW_JOB_TOKEN");
}

// What the card says of a rank that has so many io threads.
std::size_t DescriptorsWith(int io_threads) {
  Options options;
  options.rank = 0;
  options.size = 2;
  options.fabric = "tcp";
  options.socket_ifname = "lo";
  options.io_threads = io_threads;
  const SteadyClock clock;
  Warnings warnings;
  std::size_t seen = 0;
  JoinArgs args;
  args.options = &options;
  args.clock = &clock;
  args.logger = &warnings;
  args.exchange = [&](const std::string& text) {
    const Result<Card> card = DecodeCard(0, text);
    if (card.ok()) seen = card.value().descriptors;
    return Result<std::vector<std::string>>(
        Status(StatusCode::kAborted, "seen"));
  };
  EXPECT_FALSE(Join(args).ok());
  return seen;
}

// One to wake each of them, one for what they give back.
TEST(Join, KeepsDescriptorsForIoThreads) {
  const std::size_t before = DescriptorsWith(0);
  ASSERT_GT(before, 0U);
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  // No more can be had.
  limit.rlim_max = limit.rlim_cur;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  const std::size_t none = DescriptorsWith(0);
  EXPECT_EQ(none - DescriptorsWith(3), 4U);
  EXPECT_EQ(none - DescriptorsWith(1), 2U);
}

TEST(Join, WarnsOnceOfATokenThatOthersCanGuess) {
  EXPECT_EQ(WarningsOf(0, "0.0.0.0", "42.1", "42.1"), 1);
  EXPECT_EQ(WarningsOf(1, "0.0.0.0", "42.1", "42.1"), 0) << "rank 0 does";
  EXPECT_EQ(WarningsOf(0, "127.0.0.1", "42.1", "42.1"), 0) << "one host";
  EXPECT_EQ(WarningsOf(0, "0.0.0.0", "secret", "42.1"), 0) << "set by hand";
  EXPECT_EQ(WarningsOf(0, "0.0.0.0", "run", ""), 0) << "torchrun's";
}

}  // namespace
}  // namespace gradientflow
