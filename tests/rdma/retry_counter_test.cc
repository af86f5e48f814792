#include "transports/rdma/retry_counter.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "tests/rdma/fake_verbs.h"
#include "transports/rdma/rail.h"

// What a device has sent again, from files as its driver would show them.
namespace gradientflow::testing {
namespace {

class RetryCounts : public ::testing::Test {
 protected:
  RetryCounts() : sysfs_(::testing::TempDir() + "/gf_retries_XXXXXX") {
    EXPECT_NE(::mkdtemp(sysfs_.data()), nullptr);
  }
  ~RetryCounts() override { std::filesystem::remove_all(sysfs_); }

  void Write(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = sysfs_ + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  std::string sysfs_;
};

TEST_F(RetryCounts, AddsUpWhateverCallsForARetry) {
  Write("ports/2/hw_counters/local_ack_timeout_err", "3\n");
  Write("ports/2/hw_counters/packet_seq_err", "40\n");
  Write("ports/2/hw_counters/duplicate_request", "500\n");
  Write("ports/1/hw_counters/packet_seq_err", "6000\n");
  const RetryCounter counter(sysfs_, 2);
  EXPECT_EQ(counter.Total(), 43U);
  Write("ports/2/hw_counters/packet_seq_err", "18446744073709551000\n");
  EXPECT_EQ(counter.Total(), 18446744073709551003U)
      << "the files are read anew";
}

TEST_F(RetryCounts, TakesThoseOfTheDeviceIfThePortHasNone) {
  Write("ports/1/hw_counters/lifespan", "10\n");
  Write("hw_counters/completer_retry_err", "7\n");
  EXPECT_EQ(RetryCounter(sysfs_, 1).Total(), 7U);
}

TEST_F(RetryCounts, CountsNothingWhereTheDriverDoesNot) {
  EXPECT_EQ(RetryCounter().Total(), std::nullopt);
  EXPECT_EQ(RetryCounter(sysfs_, 1).Total(), std::nullopt);
  EXPECT_EQ(RetryCounter("", 1).Total(), std::nullopt);
}

TEST_F(RetryCounts, ARailCountsThoseOfItsPort) {
  Write("ports/1/hw_counters/to_retransmits", "5\n");
  FakeHost host = UsualHost(0);
  host.devices.front().sysfs = sysfs_;
  FakeVerbs fake(0);
  fake.AddHost(host);
  RailArgs args;
  args.verbs = fake.api(0);
  args.choice.device = "fake0";
  args.choice.port.number = 1;
  const auto rail = Rail::Open(args).value();
  const RemoteWrites before = rail->Count();
  EXPECT_EQ(before.retries, 5U);
  Write("ports/1/hw_counters/to_retransmits", "9\n");
  EXPECT_EQ(rail->Count().Since(before).retries, 4U);
  Write("ports/1/hw_counters/to_retransmits", "0\n");
  EXPECT_EQ(rail->Count().Since(before).retries, 0U) << "somebody reset it";
}

}  // namespace
}  // namespace gradientflow::testing
