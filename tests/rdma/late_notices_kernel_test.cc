#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "tests/rdma/verbs_end.h"
#include "transports/rdma/devices.h"
#include "transports/rdma/verbs_api.h"

// Whether a device keeps its promise of one notice per request when
// acknowledgements come later than its time-out: it then sends requests again
// that have arrived long ago, and the receiver must recognise them by their
// numbers.
//
//   one end ── data without a notice, notice n ──> other end: n, once
//           <─────── acknowledgements, late ──────
//
// This tests devices, by bare verbs, and not the transport:
// tests/guest/late_notices.sh delays the lines of two devices of Soft-RoCE.
// gradientflow/docs/rdma.md has the result.
namespace gradientflow {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kTime = std::chrono::seconds(40);
constexpr std::uint32_t kInFlight = 8;
constexpr int kReceives = 500;

VerbsEndOptions Hasty() {
  VerbsEndOptions options;
  options.timeout = 10;  // 4 ms.
  options.retries = 7;
  options.rnr_retries = 6;
  options.sends = 4 * kInFlight;
  options.receives = kReceives;
  options.completions = 2 * kReceives;
  return options;
}

struct Seen {
  std::uint32_t notices = 0;
  int twice = 0;
  int missing = 0;
  int errors = 0;
};

// Two connected ends, of which one sends notices to the other until `end`, or
// until a request fails.
class Stream {
 public:
  Stream(const std::shared_ptr<const VerbsApi>& verbs,
         const std::vector<RdmaDevice>& devices, Seen* seen)
      : from_(
            verbs, devices[0].name, [] {}, Hasty()),
        to_(
            verbs, devices[1].name, [] {}, Hasty()),
        seen_(seen) {
    from_.Connect(to_.address());
    to_.Connect(from_.address());
    for (int i = 0; i < kReceives; ++i) EXPECT_EQ(to_.PostReceive(1), 0);
  }

  void Run(std::uint32_t bytes, Clock::time_point end) {
    while (Clock::now() < end && !failed_) {
      if (sent_ - done_ < kInFlight) Send(bytes);
      for (const ibv_wc& wc : from_.Poll()) {
        if (!Failed("send", wc)) ++done_;
      }
      for (const ibv_wc& wc : to_.Poll()) {
        if (Failed("receive", wc)) break;
        Take(ntohl(wc.imm_data));
        EXPECT_EQ(to_.PostReceive(1), 0);
      }
    }
  }

 private:
  void Send(std::uint32_t bytes) {
    if (bytes > 0) {
      ibv_send_wr* const data = from_.Write(to_, 0, 0, bytes);
      data->send_flags = 0;
      EXPECT_EQ(from_.Post(data), 0);
    }
    EXPECT_EQ(from_.Post(from_.Notice(to_, 0, 0, 0, sent_++)), 0);
  }

  void Take(std::uint32_t notice) {
    ++seen_->notices;
    if (notice == expected_) {
      ++expected_;
      return;
    }
    std::printf("notice %u where %u is due\n", notice, expected_);
    if (notice < expected_) {
      ++seen_->twice;
    } else {
      ++seen_->missing;
      expected_ = notice + 1;
    }
  }

  bool Failed(const char* what, const ibv_wc& wc) {
    if (wc.status == IBV_WC_SUCCESS) return false;
    if (std::exchange(failed_, true)) return true;
    ++seen_->errors;
    std::printf("%s fails with status %d after %u notices\n", what, wc.status,
                expected_);
    return true;
  }

  VerbsEnd from_;
  VerbsEnd to_;
  Seen* const seen_;
  bool failed_ = false;
  std::uint32_t sent_ = 0;
  std::uint32_t done_ = 0;
  std::uint32_t expected_ = 0;
};

class LateNotices : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(LateNotices, ComeOnce) {
  const auto verbs = LoadVerbs();
  ASSERT_TRUE(verbs.ok()) << verbs.status().message();
  const auto devices = ListRdmaDevices(*verbs.value());
  ASSERT_TRUE(devices.ok()) << devices.status().message();
  ASSERT_GE(devices.value().size(), std::size_t{2});
  Seen seen;
  const auto end = Clock::now() + kTime;
  while (Clock::now() < end) {
    Stream(verbs.value(), devices.value(), &seen).Run(GetParam(), end);
  }
  std::printf("%u bytes before each notice: %u notices\n", GetParam(),
              seen.notices);
  EXPECT_GT(seen.notices, 0U);
  EXPECT_EQ(seen.twice, 0);
  EXPECT_EQ(seen.missing, 0);
  EXPECT_EQ(seen.errors, 0);
}

INSTANTIATE_TEST_SUITE_P(Bytes, LateNotices,
                         ::testing::Values(0U, 4096U, 16384U, 32768U));

}  // namespace
}  // namespace gradientflow
