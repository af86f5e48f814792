#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "gradientflow/collectives/choose.h"
#include "tests/communicator/allreduce_oracle.h"
#include "tests/communicator/ranks.h"

// All collectives except allreduce, over all fabrics: moved elements keep their
// bits, reduced ones are compared with float64.
namespace gradientflow::testing {
namespace {

using kernels::testing::Elements;

constexpr std::size_t kSegmentBytes = 16384;
constexpr std::size_t kCounts[] = {0, 1, 2, 7, 97, 1000, 4095, 4097};
constexpr DType kAllTypes[] = {
    DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64,
    DType::kInt8,    DType::kInt32,   DType::kInt64,    DType::kUInt8};
bool all_share = false;  // Whether the ranks of the running test share memory.

class Collectives : public ::testing::TestWithParam<std::tuple<Over, int>> {
 protected:
  void Run(const std::function<void(Communicator&)>& body) const {
    CommJob job;
    std::tie(job.over, job.size) = GetParam();
    all_share = job.over == Over::kMemory;
    job.options.segment_bytes = kSegmentBytes;
    job.options.segments_in_flight = 2;
    RunRanks(job, body);
  }
};

CollectiveCall Call(CollectiveKind kind, DType dtype, std::size_t count,
                    int root = 0) {
  CollectiveCall call;
  call.kind = kind;
  call.count = count;
  call.dtype = call.wire = dtype;
  call.root = root;
  return call;
}

// Every algorithm of the collective that the ranks can run, and "auto".
std::vector<const CollectiveAlgorithm*> Algorithms(CollectiveKind kind) {
  std::vector<const CollectiveAlgorithm*> all = {nullptr};
  for (const auto* row : AlgorithmsOf(kind)) {
    if (RunnableAlgorithm(row, 2, all_share) == row) all.push_back(row);
  }
  return all;
}

Status RunBy(const CollectiveAlgorithm* algorithm, Communicator& comm,
             CollectiveCall call) {
  call.algorithm = algorithm;
  return comm.Run(call);
}

std::size_t Sum(const std::vector<std::size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

// Elements [to, to + n) are [from, from + n) of rank `rank`'s input.
void ExpectInput(const Elements& seen, std::size_t to, int rank,
                 std::size_t from, std::size_t n) {
  const Elements input = Input(seen.type(), rank, from + n);
  for (std::size_t i = 0; i < n; ++i) {
    if (seen.Bits(to + i) == input.Bits(from + i)) continue;
    FAIL() << "element " << i << " of rank " << rank << "'s part";
  }
  EXPECT_TRUE(seen.CanariesIntact());
}

TEST_P(Collectives, BroadcastFromEveryRoot) {
  Run([](Communicator& comm) {
    for (std::size_t count : kCounts) {
      // All roots, but for long buffers only the first ones.
      const int roots = count > 1000 ? std::min(2, comm.size()) : comm.size();
      for (int root = 0; root < roots; ++root) {
        const DType dtype = kAllTypes[(count + root) % std::size(kAllTypes)];
        for (const auto* algorithm : Algorithms(CollectiveKind::kBroadcast)) {
          Elements data = Input(dtype, comm.rank(), count);
          CollectiveCall call =
              Call(CollectiveKind::kBroadcast, dtype, count, root);
          call.output = data.data();
          ASSERT_TRUE(RunBy(algorithm, comm, call).ok());
          ExpectInput(data, 0, root, 0, count);
        }
      }
    }
  });
}

TEST_P(Collectives, AllgatherInRankOrder) {
  Run([](Communicator& comm) {
    int round = 0;
    for (std::size_t count : kCounts) {
      const DType dtype = kAllTypes[round++ % std::size(kAllTypes)];
      const Elements mine = Input(dtype, comm.rank(), count);
      for (const auto* algorithm : Algorithms(CollectiveKind::kAllgather)) {
        Elements all(dtype, count * comm.size());
        CollectiveCall call = Call(CollectiveKind::kAllgather, dtype, count);
        call.input = mine.data();
        call.output = all.data();
        ASSERT_TRUE(RunBy(algorithm, comm, call).ok());
        for (int r = 0; r < comm.size(); ++r) {
          ExpectInput(all, r * count, r, 0, count);
        }
      }
    }
  });
}

constexpr ReduceOp kIntegerOps[] = {
    ReduceOp::kSum,    ReduceOp::kMin,   ReduceOp::kMax,   ReduceOp::kProduct,
    ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor};

void ExpectReducedIntegers(const Elements& seen, ReduceOp op,
                           const std::vector<Elements>& inputs,
                           std::size_t from) {
  for (std::size_t i = 0; i < seen.size(); ++i) {
    std::uint64_t bits = inputs[0].Bits(from + i);
    for (std::size_t r = 1; r < inputs.size(); ++r) {
      bits = kernels::testing::CombineBits(static_cast<kernels::ReduceOp>(op),
                                           seen.type(), bits,
                                           inputs[r].Bits(from + i));
    }
    if (seen.Bits(i) == bits) continue;
    FAIL() << Name(op) << " of " << Name(seen.type()) << ", element " << i;
  }
  EXPECT_TRUE(seen.CanariesIntact());
}

std::vector<Elements> Inputs(const Communicator& comm, DType dtype,
                             std::size_t count) {
  std::vector<Elements> inputs;
  for (int r = 0; r < comm.size(); ++r) {
    inputs.push_back(Input(dtype, r, count));
  }
  return inputs;
}

TEST_P(Collectives, ReduceAndReduceScatterOfIntegersWithEveryOperation) {
  Run([](Communicator& comm) {
    const auto size = static_cast<std::size_t>(comm.size());
    int round = 0;
    for (DType dtype : kernels::testing::kIntegerTypes) {
      for (ReduceOp op : kIntegerOps) {
        const std::size_t count = round % 3 == 0 ? 4099 : 53;
        const int root = round++ % comm.size();
        const std::vector<Elements> inputs = Inputs(comm, dtype, count * size);
        const bool is_root = comm.rank() == root;
        Elements reduced(dtype, is_root ? count : 0);
        CollectiveCall call = Call(CollectiveKind::kReduce, dtype, count, root);
        call.op = op;
        call.input = inputs[comm.rank()].data();
        call.output = is_root ? reduced.data() : nullptr;
        ASSERT_TRUE(comm.Run(call).ok());
        ExpectReducedIntegers(reduced, op, inputs, 0);
        Elements block(dtype, count);
        call.kind = CollectiveKind::kReduceScatter;
        call.output = block.data();
        ASSERT_TRUE(comm.Run(call).ok());
        ExpectReducedIntegers(block, op, inputs, comm.rank() * count);
      }
    }
  });
}

// Combines in rank order.
double ReducedInOrder(ReduceOp op, DType dtype,
                      const std::vector<Elements>& inputs, std::size_t i) {
  const auto kernel_op = op == ReduceOp::kMean
                             ? kernels::ReduceOp::kSum
                             : static_cast<kernels::ReduceOp>(op);
  double value = inputs[0].Get(i);
  for (std::size_t r = 1; r < inputs.size(); ++r) {
    value =
        kernels::testing::Combine(kernel_op, dtype, value, inputs[r].Get(i));
  }
  return value;
}

// An algorithm that adds all contributions at once does so in rank order, and
// rounds the sum once: exactly these bits. Floats of 16 bits are added only in
// this way unless the call asks for another algorithm. Partial sums are rounded
// each time.
void ExpectReduced(const Elements& seen, ReduceOp op,
                   const CollectiveAlgorithm* algorithm,
                   const std::vector<Elements>& inputs, std::size_t from) {
  const bool exactly = algorithm == nullptr ? SizeOf(seen.type()) == 2
                                            : !algorithm->partial_sums;
  const std::map<DType, double> kPrecision = {{DType::kFloat64, 0x1p-52},
                                              {DType::kFloat32, 0x1p-23},
                                              {DType::kFloat16, 0x1p-10},
                                              {DType::kBFloat16, 0x1p-7}};
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const double exact = ReducedInOrder(op, seen.type(), inputs, from + i);
    const double rounded = kernels::testing::RoundTo(seen.type(), exact);
    double largest = std::abs(exact);
    for (const Elements& input : inputs) {
      largest = std::max(largest, std::abs(input.Get(from + i)));
    }
    const double bound = exactly ? 0
                                 : kPrecision.at(seen.type()) * largest *
                                       static_cast<double>(inputs.size());
    if (std::abs(seen.Get(i) - rounded) <= bound) continue;
    ASSERT_TRUE(kernels::testing::Is(seen, i, rounded))
        << "element " << i << " by " << Name(algorithm);
  }
  EXPECT_TRUE(seen.CanariesIntact());
}

TEST_P(Collectives, ReduceToEveryRoot) {
  Run([](Communicator& comm) {
    const int size = comm.size();
    int round = 0;
    constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin,
                                 ReduceOp::kProduct};
    for (std::size_t count : kCounts) {
      const ReduceOp op = kOps[round % std::size(kOps)];
      const int root = round % size;
      const DType dtype = kAllTypes[round++ % 4];
      const std::vector<Elements> inputs = Inputs(comm, dtype, count);
      const bool is_root = comm.rank() == root;
      for (const auto* algorithm : Algorithms(CollectiveKind::kReduce)) {
        Elements output(dtype, is_root ? count : 0);
        CollectiveCall call = Call(CollectiveKind::kReduce, dtype, count, root);
        call.op = op;
        call.input = inputs[comm.rank()].data();
        call.output = is_root ? output.data() : nullptr;
        ASSERT_TRUE(RunBy(algorithm, comm, call).ok());
        if (is_root) ExpectReduced(output, op, algorithm, inputs, 0);
      }
    }
  });
}

TEST_P(Collectives, ReduceInPlaceOnTheRoot) {
  Run([](Communicator& comm) {
    std::vector<std::int64_t> data(2049, 1 + comm.rank());
    CollectiveCall call =
        Call(CollectiveKind::kReduce, DType::kInt64, data.size());
    call.input = data.data();
    call.output = comm.rank() == 0 ? data.data() : nullptr;
    ASSERT_TRUE(comm.Run(call).ok());
    const std::int64_t n = comm.size();
    const std::int64_t expected =
        comm.rank() == 0 ? n * (n + 1) / 2 : 1 + comm.rank();
    EXPECT_EQ(data, std::vector<std::int64_t>(data.size(), expected));
  });
}

TEST_P(Collectives, ReduceScatterGivesEachRankItsBlock) {
  Run([](Communicator& comm) {
    const auto size = static_cast<std::size_t>(comm.size());
    int round = 0;
    for (std::size_t count : kCounts) {
      const DType dtype = kAllTypes[round++ % 4];
      const std::vector<Elements> inputs = Inputs(comm, dtype, count * size);
      for (const auto* algorithm : Algorithms(CollectiveKind::kReduceScatter)) {
        Elements output(dtype, count);
        CollectiveCall call =
            Call(CollectiveKind::kReduceScatter, dtype, count);
        call.input = inputs[comm.rank()].data();
        call.output = output.data();
        ASSERT_TRUE(RunBy(algorithm, comm, call).ok());
        ExpectReduced(output, ReduceOp::kSum, algorithm, inputs,
                      comm.rank() * count);
      }
    }
  });
}

// Whatever the algorithm, each contribution to a mean is scaled once.
TEST_P(Collectives, MeansByEveryAlgorithm) {
  Run([](Communicator& comm) {
    const auto size = static_cast<std::size_t>(comm.size());
    constexpr std::size_t kCount = 37;
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat16, DType::kFloat64}) {
      const std::vector<Elements> inputs = Inputs(comm, dtype, kCount * size);
      const auto check = [&](const Elements& seen, std::size_t from) {
        for (std::size_t i = 0; i < seen.size(); ++i) {
          double mean = 0;
          double sizes = 1e-6;
          for (const Elements& input : inputs) {
            mean += input.Get(from + i) / comm.size();
            sizes += std::abs(input.Get(from + i));
          }
          ASSERT_NEAR(seen.Get(i), mean, 4e-3 * sizes) << Name(dtype);
        }
      };
      for (const auto* algorithm : Algorithms(CollectiveKind::kReduceScatter)) {
        Elements block(dtype, kCount);
        CollectiveCall call =
            Call(CollectiveKind::kReduceScatter, dtype, kCount);
        call.op = ReduceOp::kMean;
        call.input = inputs[comm.rank()].data();
        call.output = block.data();
        ASSERT_TRUE(RunBy(algorithm, comm, call).ok());
        check(block, comm.rank() * kCount);
      }
      for (const auto* algorithm : Algorithms(CollectiveKind::kReduce)) {
        const bool is_root = comm.rank() + 1 == comm.size();
        Elements sum(dtype, is_root ? kCount : 0);
        CollectiveCall call =
            Call(CollectiveKind::kReduce, dtype, kCount, comm.size() - 1);
        call.op = ReduceOp::kMean;
        call.input = inputs[comm.rank()].data();
        call.output = sum.data();
        ASSERT_TRUE(RunBy(algorithm, comm, call).ok());
        check(sum, 0);
      }
    }
  });
}

TEST_P(Collectives, AllToAllWithEqualCounts) {
  Run([](Communicator& comm) {
    const auto size = static_cast<std::size_t>(comm.size());
    int round = 0;
    for (const std::size_t count : {0, 1, 97, 1000}) {
      const DType dtype = kAllTypes[round++];
      for (const auto* algorithm : Algorithms(CollectiveKind::kAllToAll)) {
        CollectiveCall call = Call(CollectiveKind::kAllToAll, dtype, 0);
        call.send_counts.assign(size, count);
        call.recv_counts.assign(size, count);
        call.equal_counts = true;
        const Elements input = Input(dtype, comm.rank(), size * count);
        Elements output(dtype, size * count);
        call.input = input.data();
        call.output = output.data();
        ASSERT_TRUE(RunBy(algorithm, comm, call).ok());
        for (int r = 0; r < comm.size(); ++r) {
          ExpectInput(output, r * count, r, comm.rank() * count, count);
        }
      }
    }
    CollectiveCall call = Call(CollectiveKind::kAllToAll, DType::kInt8, 0);
    std::vector<std::int8_t> data(2 * size);
    call.input = data.data();
    call.output = data.data() + size;
    call.send_counts.assign(size, 1);
    call.recv_counts.assign(size, 1);
    EXPECT_FALSE(RunBy(&collectives::kBruckAllToAll, comm, call).ok());
    EXPECT_FALSE(RunBy(&collectives::kRingAllgather, comm, call).ok());
    call.equal_counts = true;
    if (size > 1) call.send_counts.back() = 2;
    EXPECT_EQ(RunBy(nullptr, comm, call).ok(), size == 1);
  });
}

// Elements that rank `from` sends to rank `to`: uneven, and sometimes none.
std::size_t Sent(int from, int to, int round) {
  const int mix = from * 31 + to * 17 + round * 7;
  return mix % 4 == 0 ? 0 : static_cast<std::size_t>(mix * 37 % 1500);
}

TEST_P(Collectives, AllToAllWithUnevenCountsAndZeros) {
  Run([](Communicator& comm) {
    const int me = comm.rank();
    for (int round = 0; round < 8; ++round) {
      const DType dtype = kAllTypes[round];
      CollectiveCall call = Call(CollectiveKind::kAllToAll, dtype, 0);
      for (int r = 0; r < comm.size(); ++r) {
        call.send_counts.push_back(Sent(me, r, round));
        call.recv_counts.push_back(Sent(r, me, round));
      }
      const Elements input = Input(dtype, me, Sum(call.send_counts));
      Elements output(dtype, Sum(call.recv_counts));
      call.input = input.data();
      call.output = output.data();
      ASSERT_TRUE(comm.Run(call).ok());
      std::size_t to = 0;
      for (int r = 0; r < comm.size(); ++r) {
        std::size_t from = 0;
        for (int before = 0; before < me; ++before) {
          from += Sent(r, before, round);
        }
        ExpectInput(output, to, r, from, Sent(r, me, round));
        to += Sent(r, me, round);
      }
    }
  });
}

std::vector<std::size_t> UnevenCounts(int size, int round) {
  std::vector<std::size_t> counts;
  for (int r = 0; r < size; ++r) counts.push_back(Sent(r, 3, round));
  return counts;
}

TEST_P(Collectives, GatherAndScatterWithUnevenCounts) {
  Run([](Communicator& comm) {
    const int me = comm.rank();
    for (int round = 0; round < 8; ++round) {
      const DType dtype = kAllTypes[round];
      const int root = round % comm.size();
      const std::vector<std::size_t> counts = UnevenCounts(comm.size(), round);
      const Elements mine = Input(dtype, me, counts[me]);
      for (const char* name : {"auto", "direct", "binomial"}) {
        Elements all(dtype, me == root ? Sum(counts) : 0);
        CollectiveCall gather = Call(CollectiveKind::kGather, dtype, 0, root);
        gather.algorithm = ParseAlgorithm(gather.kind, name).value();
        gather.recv_counts = counts;
        gather.input = mine.data();
        gather.output = all.data();
        ASSERT_TRUE(comm.Run(gather).ok());
        std::size_t at = 0;
        for (int r = 0; me == root && r < comm.size(); at += counts[r++]) {
          ExpectInput(all, at, r, 0, counts[r]);
        }
        // And back to where it came from.
        Elements again(dtype, counts[me]);
        CollectiveCall scatter = Call(CollectiveKind::kScatter, dtype, 0, root);
        scatter.algorithm = ParseAlgorithm(scatter.kind, name).value();
        scatter.send_counts = counts;
        scatter.input = all.data();
        scatter.output = again.data();
        ASSERT_TRUE(comm.Run(scatter).ok());
        EXPECT_TRUE(again.SameBits(mine));
      }
    }
  });
}

TEST_P(Collectives, AllgatherWithUnevenCounts) {
  Run([](Communicator& comm) {
    const int me = comm.rank();
    for (int round = 0; round < 8; ++round) {
      const DType dtype = kAllTypes[round];
      const std::vector<std::size_t> counts = UnevenCounts(comm.size(), round);
      const Elements mine = Input(dtype, me, counts[me]);
      CollectiveCall gather = Call(CollectiveKind::kAllgather, dtype, 0);
      gather.recv_counts = counts;
      gather.input = mine.data();
      for (const auto* algorithm : Algorithms(CollectiveKind::kAllgather)) {
        Elements all(dtype, Sum(counts));
        gather.output = all.data();
        ASSERT_TRUE(RunBy(algorithm, comm, gather).ok());
        std::size_t at = 0;
        for (int r = 0; r < comm.size(); at += counts[r++]) {
          ExpectInput(all, at, r, 0, counts[r]);
        }
        EXPECT_TRUE(all.CanariesIntact());
      }
      gather.recv_counts.push_back(1);
      EXPECT_EQ(comm.Run(gather).code(), StatusCode::kInvalidArgument);
    }
  });
}

TEST_P(Collectives, BarrierWaitsForAll) {
  CommJob job;
  std::tie(job.over, job.size) = GetParam();
  std::atomic<int> arrived{0};
  RunRanks(job, [&](Communicator& comm) {
    const auto call = Call(CollectiveKind::kBarrier, DType::kInt8, 0);
    for (int round = 1; round <= 5; ++round) {
      ++arrived;
      ASSERT_TRUE(comm.Run(call).ok());
      EXPECT_GE(arrived.load(), round * comm.size());
      ASSERT_TRUE(comm.Run(call).ok());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(InProcess, Collectives,
                         ::testing::Combine(::testing::Values(Over::kMemory,
                                                              Over::kMessages),
                                            ::testing::Values(1, 2, 3, 5, 8)),
                         ParamName);
INSTANTIATE_TEST_SUITE_P(
    Joined, Collectives,
    ::testing::Values(std::tuple{Over::kTcp, 2}, std::tuple{Over::kTcp, 3},
                      std::tuple{Over::kMixed, 2}, std::tuple{Over::kMixed, 3},
                      std::tuple{Over::kRdma, 3}, std::tuple{Over::kNeeded, 6},
                      std::tuple{Over::kNeeded, 8}),
    ParamName);

}  // namespace
}  // namespace gradientflow::testing
