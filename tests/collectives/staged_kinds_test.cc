#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "tests/collectives/executor_ranks.h"
#include "tests/collectives/staged_ranks.h"

// Every kind of collective on device memory, compared with the same call on
// host memory.
namespace gradientflow::testing {
namespace {

using Kind = CollectiveKind;

constexpr Kind kKinds[] = {
    Kind::kAllreduce,     Kind::kBroadcast, Kind::kReduce, Kind::kAllgather,
    Kind::kReduceScatter, Kind::kAllToAll,  Kind::kGather, Kind::kScatter};

constexpr ReduceOp kIntegerOps[] = {
    ReduceOp::kSum,    ReduceOp::kMin,   ReduceOp::kMax,   ReduceOp::kProduct,
    ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor};

// Which sides of a call are on the device.
struct Sides {
  bool input;
  bool output;
};
constexpr Sides kSides[] = {{true, true}, {true, false}, {false, true}};

class StagedKinds
    : public ::testing::TestWithParam<std::tuple<int, bool, DType>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<2>(GetParam()); }

  CollectiveCall CallOf(Kind kind, std::size_t count, int root,
                        int rank) const {
    CollectiveCall call;
    call.kind = kind;
    call.count = count;
    call.dtype = call.wire = dtype();
    call.root = root;
    for (int r = 0; r < size(); ++r) {
      // Uneven parts, some of them empty.
      const auto between = [&](int a, int b) {
        return count * static_cast<std::size_t>((a + b) % 3);
      };
      if (kind == Kind::kAllToAll) {
        call.send_counts.push_back(between(rank, r));
        call.recv_counts.push_back(between(r, rank));
      } else if (kind == Kind::kGather) {
        call.recv_counts.push_back(between(r, 1));
      } else if (kind == Kind::kScatter) {
        call.send_counts.push_back(between(r, 1));
      }
    }
    if (kind == Kind::kAllreduce && count > 3) {
      call.extents = {{1, 2}, {5, count - 2}};
    }
    return call;
  }
};

std::vector<std::byte> Bytes(std::size_t count, DType dtype, int rank,
                             std::uint64_t seed) {
  std::vector<float> values = Contribution(rank, count, seed);
  if (dtype == DType::kFloat32) return Encode(dtype, values);
  std::vector<std::byte> bytes(count * SizeOf(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<std::int32_t>(values[i] * 1e6F);
    std::memcpy(bytes.data() + i * SizeOf(dtype), &value,
                std::min(sizeof(value), SizeOf(dtype)));
  }
  return bytes;
}

TEST_P(StagedKinds, GiveOnTheDeviceWhatTheyGiveOnTheHost) {
  RanksSetup setup = {size(), std::get<1>(GetParam())};
  OnRanks(setup, [&](TestRank& host) {
    DeviceRank rank(host);
    std::uint64_t seed = 1;
    for (Kind kind : kKinds) {
      for (std::size_t count : {0, 1, 53, 3001}) {
        for (const Sides& sides : kSides) {
          const int root = static_cast<int>(++seed) % size();
          CollectiveCall call = CallOf(kind, count, root, host.rank());
          if (!IsFloat(dtype())) {
            call.op = kIntegerOps[seed % std::size(kIntegerOps)];
          }
          const CallBuffers buffers = BuffersOf(call, host.group());
          const std::string what =
              StrCat(Name(kind), " of ", count, " from rank ", root, ", rank ",
                     host.rank(), " of ", size());
          const std::size_t spare = call.extents.empty() ? 0 : 7;
          std::vector<std::byte> input =
              Bytes(buffers.input, dtype(), host.rank(), seed);
          std::vector<std::byte> output =
              Bytes(buffers.output + spare, dtype(), host.rank(), seed + 1000);
          // Lent to the stream until the first Download().
          const std::vector<std::byte> lent[] = {input, output};
          const DeviceMemory on_device[] = {rank.Upload(lent[0]),
                                            rank.Upload(lent[1])};
          std::vector<std::byte> seen = output;
          CollectiveCall staged = call;
          staged.input = sides.input ? on_device[0].get() : input.data();
          staged.output = sides.output ? on_device[1].get() : seen.data();
          const Ending ending = rank.Run(staged);
          ASSERT_TRUE(ending.status.ok()) << what << ending.status.ToString();
          if (sides.output) {
            seen = rank.Download(on_device[1], output.size());
          }
          call.input = input.data();
          call.output = output.data();
          Ending plain;
          host.executor().Start(call, plain.done());
          rank.Drive([&] { return plain.over(); });
          ASSERT_TRUE(plain.status.ok()) << what << plain.status.ToString();
          EXPECT_TRUE(seen == output) << what;
          EXPECT_TRUE(rank.Download(on_device[0], input.size()) == input)
              << what << ": the input was written to";
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
    Ending barrier;
    CollectiveCall call;
    call.kind = Kind::kBarrier;
    rank.staged().Start(call, barrier.done());
    rank.Drive([&] { return barrier.over(); });
    EXPECT_TRUE(barrier.status.ok());
    EXPECT_EQ(rank.slow_copies(), 0);
    EXPECT_EQ(rank.staged().in_flight(), 0);
  });
}

std::string ParamName(
    const ::testing::TestParamInfo<std::tuple<int, bool, DType>>& info) {
  return StrCat(Name(std::get<2>(info.param)),
                std::get<1>(info.param) ? "memory" : "messages",
                std::get<0>(info.param));
}
INSTANTIATE_TEST_SUITE_P(
    Ranks, StagedKinds,
    ::testing::Combine(::testing::Values(1, 2, 3, 5), ::testing::Bool(),
                       ::testing::Values(DType::kFloat32, DType::kInt32,
                                         DType::kInt64, DType::kUInt8)),
    ParamName);

}  // namespace
}  // namespace gradientflow::testing
