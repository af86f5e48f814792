#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/collectives/executor_ranks.h"
#include "tests/collectives/late_rank.h"

// What a large gather needs at a root that comes late.
namespace gradientflow::testing {
namespace {

std::size_t ResidentBytes() {
  unsigned long pages = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  const int read = std::fscanf(file, "%*s %lu", &pages);
  static_cast<void>(std::fclose(file));
  return read == 1 ? pages * static_cast<std::size_t>(::getpagesize()) : 0;
}

TEST(LateRoot, NeedsLittleMemoryBeyondTheResult) {
  constexpr int kSize = 16;
  constexpr std::size_t kPart = std::size_t{30} << 20;
  constexpr std::size_t kMost = 64'000'000;
  RanksSetup setup;
  setup.size = kSize;
  setup.memory = false;
  LateRank late(3, kSize);
  std::vector<std::byte> part(kPart);
  for (std::size_t i = 0; i < kPart; ++i) {
    part[i] = static_cast<std::byte>(i * i / 251);
  }
  // Not touched before the root receives.
  const std::unique_ptr<std::byte[]> result(new std::byte[kSize * kPart]);
  OnRanks(setup, [&](TestRank& rank) {
    CollectiveCall call;
    call.kind = CollectiveKind::kGather;
    call.dtype = call.wire = DType::kInt8;
    call.root = 3;
    call.recv_counts = std::vector<std::size_t>(kSize, kPart);
    call.input = part.data();
    call.output = result.get();
    Ending ending;
    if (rank.rank() == 3) {
      const std::size_t before = ResidentBytes();
      late.Await(&rank);
      EXPECT_GT(rank.fabric().waiting_bytes(0), 0U) << "nothing has come";
      EXPECT_LE(HeldAt(rank), kMost);
      const std::size_t after = ResidentBytes();
      EXPECT_LE(after, before + kMost);
      RecordProperty("grown_by", std::to_string(after - before));
    }
    rank.executor().Start(call, ending.done());
    if (rank.rank() != 3) late.Await(&rank);
    rank.Drive([&] { return ending.over(); });
    ASSERT_TRUE(ending.status.ok()) << ending.status.ToString();
  });
  for (int r = 0; r < kSize; ++r) {
    ASSERT_EQ(std::memcmp(result.get() + static_cast<std::size_t>(r) * kPart,
                          part.data(), kPart),
              0)
        << "of rank " << r;
  }
}

}  // namespace
}  // namespace gradientflow::testing
