#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <vector>

#include "tests/nccl/nccl_suite.h"

// Every kind of collective over NCCL except allreduce: moved elements keep
// their bits, reduced ones are compared with float64.
namespace gradientflow::testing {
namespace {

using kernels::testing::Elements;

TEST_P(NcclCollectives, BroadcastFromEveryRoot) {
  Run([](NcclRank& self) {
    for (const std::size_t count : kCounts) {
      for (int root = 0; root < self.collective.size(); ++root) {
        const DType type = kEveryType[(count + root) % std::size(kEveryType)];
        CollectiveCall call =
            Call(CollectiveKind::kBroadcast, type, count, root);
        const DeviceMemory memory =
            self.Upload(NcclInput(type, self.rank, count, 7));
        call.output = memory.get();
        ExpectOk(self.Run(call), call);
        Elements seen(type, count);
        NcclRank::Download(memory, &seen);
        ExpectMoved(seen, 0, NcclInput(type, root, count, 7), 0, count);
      }
    }
  });
}

TEST_P(NcclCollectives, AllgatherInRankOrder) {
  Run([](NcclRank& self) {
    const auto size = static_cast<std::size_t>(self.collective.size());
    for (const std::size_t count : kCounts) {
      const DType type = kEveryType[count % std::size(kEveryType)];
      const std::vector<Elements> inputs =
          Inputs(self.collective.size(), type, count, 9);
      CollectiveCall call = Call(CollectiveKind::kAllgather, type, count);
      Elements seen(type, count * size);
      const DeviceMemory input = self.Upload(inputs[self.rank]);
      const DeviceMemory output = self.Upload(seen);
      call.input = input.get();
      call.output = output.get();
      ExpectOk(self.Run(call), call);
      NcclRank::Download(output, &seen);
      for (std::size_t r = 0; r < size; ++r) {
        ExpectMoved(seen, r * count, inputs[r], 0, count);
      }
    }
  });
}

TEST_P(NcclCollectives, ReduceToEveryRootAlsoInPlace) {
  Run([](NcclRank& self) {
    int round = 0;
    for (const DType type : kEveryType) {
      for (const ReduceOp op : kEveryOp) {
        if (!IsFloat(type) && op == ReduceOp::kMean) continue;
        const int root = round % self.collective.size();
        CollectiveCall call = Call(CollectiveKind::kReduce, type, 211, root);
        call.op = op;
        if (IsFloat(type) && round % 2 == 0) call.scale = 0.7F;
        const std::vector<Elements> inputs =
            Inputs(self.collective.size(), type, call.count, 11);
        const bool is_root = self.rank == root;
        const DeviceMemory input = self.Upload(inputs[self.rank]);
        Elements seen(type, is_root ? call.count : 0);
        const DeviceMemory output =
            ++round % 3 == 0 ? input : self.Upload(seen);
        call.input = input.get();
        call.output = is_root ? output.get() : nullptr;
        ExpectOk(self.Run(call), call);
        NcclRank::Download(output, &seen);
        for (std::size_t i = 0; i < seen.size(); ++i) {
          ASSERT_TRUE(IsReduced(call, inputs, i, seen, i)) << Describe(call);
        }
      }
    }
  });
}

TEST_P(NcclCollectives, ReduceScatterGivesEachRankItsBlock) {
  Run([](NcclRank& self) {
    const auto size = static_cast<std::size_t>(self.collective.size());
    int round = 0;
    for (const std::size_t count : kCounts) {
      const DType type = kEveryType[round % 4];
      CollectiveCall call = Call(CollectiveKind::kReduceScatter, type, count);
      call.op = kEveryOp[round++ % 5];
      call.scale = 0.7F;
      const std::vector<Elements> inputs =
          Inputs(self.collective.size(), type, count * size, 13);
      const DeviceMemory input = self.Upload(inputs[self.rank]);
      Elements seen(type, count);
      const DeviceMemory output = self.Upload(seen);
      call.input = input.get();
      call.output = output.get();
      ExpectOk(self.Run(call), call);
      NcclRank::Download(output, &seen);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_TRUE(IsReduced(call, inputs, self.rank * count + i, seen, i))
            << Describe(call);
      }
    }
  });
}

// Elements that rank `from` sends to rank `to`: uneven, and sometimes none.
std::size_t Sent(int from, int to, int round) {
  const int mix = from * 31 + to * 17 + round * 7;
  return mix % 4 == 0 ? 0 : static_cast<std::size_t>(mix * 37 % 900);
}

std::size_t Sum(const std::vector<std::size_t>& counts, int first) {
  return std::accumulate(counts.begin(), counts.begin() + first,
                         std::size_t{0});
}

TEST_P(NcclCollectives, AllToAllWithUnevenCountsAndZeros) {
  Run([](NcclRank& self) {
    const int size = self.collective.size();
    const int types = std::size(kEveryType);
    for (int round = 0; round <= types; ++round) {
      const DType type = kEveryType[round % types];
      CollectiveCall call = Call(CollectiveKind::kAllToAll, type, 0);
      for (int r = 0; r < size; ++r) {
        // In the last round only rank 0 has elements.
        const bool all = round < types;
        const bool mine = all || self.rank == 0;
        call.send_counts.push_back(mine ? Sent(self.rank, r, round) : 0);
        call.recv_counts.push_back(all || r == 0 ? Sent(r, self.rank, round)
                                                 : 0);
      }
      const DeviceMemory input = self.Upload(
          NcclInput(type, self.rank, Sum(call.send_counts, size), 15));
      Elements seen(type, Sum(call.recv_counts, size));
      const DeviceMemory output = self.Upload(seen);
      call.input = input.get();
      call.output = output.get();
      ExpectOk(self.Run(call), call);
      NcclRank::Download(output, &seen);
      for (int r = 0; r < size; ++r) {
        std::size_t from = 0;
        for (int to = 0; to < self.rank; ++to) from += Sent(r, to, round);
        const std::size_t n = call.recv_counts[r];
        ExpectMoved(seen, Sum(call.recv_counts, r),
                    NcclInput(type, r, from + n, 15), from, n);
      }
    }
  });
}

TEST_P(NcclCollectives, GatherAndScatterWithUnevenCounts) {
  Run([](NcclRank& self) {
    const int size = self.collective.size();
    int round = 0;
    for (const DType type : kEveryType) {
      const int root = ++round % size;
      std::vector<std::size_t> counts;
      for (int r = 0; r < size; ++r) counts.push_back(Sent(r, 3, round));
      const Elements mine = NcclInput(type, self.rank, counts[self.rank], 17);
      const DeviceMemory part = self.Upload(mine);
      Elements all(type, self.rank == root ? Sum(counts, size) : 0);
      const DeviceMemory whole = self.Upload(all);
      CollectiveCall gather = Call(CollectiveKind::kGather, type, 0, root);
      gather.recv_counts = counts;
      gather.input = part.get();
      gather.output = whole.get();
      ExpectOk(self.Run(gather), gather);
      NcclRank::Download(whole, &all);
      for (int r = 0; r < size && self.rank == root; ++r) {
        ExpectMoved(all, Sum(counts, r), NcclInput(type, r, counts[r], 17), 0,
                    counts[r]);
      }
      // And back to where it came from.
      Elements again(type, counts[self.rank]);
      const DeviceMemory back = self.Upload(again);
      CollectiveCall scatter = Call(CollectiveKind::kScatter, type, 0, root);
      scatter.send_counts = counts;
      scatter.input = whole.get();
      scatter.output = back.get();
      ExpectOk(self.Run(scatter), scatter);
      NcclRank::Download(back, &again);
      EXPECT_TRUE(again.SameBits(mine));
    }
  });
}

TEST_P(NcclCollectives, BarrierWaitsForAll) {
  std::atomic<int> arrived{0};
  Run([&](NcclRank& self) {
    const CollectiveCall call = Call(CollectiveKind::kBarrier, DType::kInt8, 0);
    for (int round = 1; round <= 5; ++round) {
      ++arrived;
      ExpectOk(self.Run(call), call);
      EXPECT_GE(arrived.load(), round * self.collective.size());
      ExpectOk(self.Run(call), call);
    }
  });
}

// One rank starts its plain call before its bucket, the other after it.
TEST_P(NcclCollectives, ChannelsDoNotWaitForEachOther) {
  Run([](NcclRank& self) {
    CollectiveCall calls[kChannels];
    std::vector<DeviceMemory> memory;
    Outcome outcomes[kChannels];
    for (int channel = 0; channel < kChannels; ++channel) {
      calls[channel] = Call(CollectiveKind::kAllreduce, DType::kInt32,
                            55 + static_cast<std::size_t>(channel));
      calls[channel].channel = static_cast<Channel>(channel);
      memory.push_back(self.Upload(
          NcclInput(DType::kInt32, self.rank, calls[channel].count, channel)));
      calls[channel].output = memory.back().get();
    }
    for (int i = 0; i < kChannels; ++i) {
      const int channel = (self.rank + i) % kChannels;
      self.collective.Start(calls[channel], outcomes[channel].done());
    }
    for (int channel = 0; channel < kChannels; ++channel) {
      self.PollUntil(outcomes[channel]);
      ExpectOk(outcomes[channel], calls[channel]);
    }
  });
}

// NCCL has none: the rank that calls gets an error, and nothing else happens.
TEST_P(NcclCollectives, BitwiseOperationsAreRefused) {
  Run([&](NcclRank& self) {
    CollectiveCall sum = Call(CollectiveKind::kAllreduce, DType::kUInt8, 9);
    const std::vector<Elements> inputs =
        Inputs(self.collective.size(), sum.dtype, sum.count, 19);
    const DeviceMemory memory = self.Upload(inputs[self.rank]);
    const DeviceMemory other = self.Upload(inputs[self.rank]);
    sum.output = memory.get();
    for (const CollectiveKind kind :
         {CollectiveKind::kAllreduce, CollectiveKind::kReduce,
          CollectiveKind::kReduceScatter}) {
      for (const ReduceOp op :
           {ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor}) {
        CollectiveCall call = Call(kind, DType::kUInt8, 1);
        call.op = op;
        call.input = other.get();
        call.output = memory.get();
        const Outcome outcome = self.Run(call);
        EXPECT_EQ(outcome.status.code(), StatusCode::kUnimplemented);
        EXPECT_NE(outcome.status.message().find(Name(op)), std::string::npos)
            << outcome.status.message();
      }
    }
    // Calls that do not reduce have no operation.
    CollectiveCall broadcast =
        Call(CollectiveKind::kBroadcast, DType::kFloat32, 1);
    broadcast.op = ReduceOp::kBitOr;
    const DeviceMemory word = self.Upload(Elements(DType::kFloat32, 1));
    broadcast.output = word.get();
    ExpectOk(self.Run(broadcast), broadcast);
    ExpectOk(self.Run(sum), sum);
    Elements seen(sum.dtype, sum.count);
    NcclRank::Download(memory, &seen);
    for (std::size_t i = 0; i < sum.count; ++i) {
      EXPECT_TRUE(IsReduced(sum, inputs, i, seen, i));
    }
  });
  EXPECT_EQ(nccl_.Get(FakeNcclCount::kCollectives),
            2 * std::get<0>(GetParam()));
}

GRADIENTFLOW_FOR_NCCL_RANKS(NcclCollectives);

}  // namespace
}  // namespace gradientflow::testing
