#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/kernels.h"
#include "tests/kernels/oracle.h"

namespace gradientflow::kernels::testing {
namespace {

// One call: its types, and buffers for its sources and destinations.
struct Call {
  DType src_type = DType::kFloat32;
  DType dst_type = DType::kFloat32;
  DType round_type = DType::kFloat32;
  int own = -1;
  ReduceOp op = ReduceOp::kSum;
  float scale = 1;
  DType wire_type = DType::kFloat32;
  float last_scale = 1;
  bool apart = true;  // At different alignments.
  std::vector<Elements> srcs;
  std::vector<Elements> dsts;
};

class ReduceMany : public EveryTable {
 protected:
  void AddBuffers(Call& call, int sources, int dests, std::size_t n) {
    for (int s = 0; s < sources; ++s) {
      const DType type = s == call.own ? call.dst_type : call.src_type;
      call.srcs.emplace_back(type, n, ShiftOf(call, s % 5));
      call.srcs.back().Fill(random_);
    }
    for (int d = 0; d < dests; ++d) {
      call.dsts.emplace_back(call.dst_type, n, ShiftOf(call, d % 3));
    }
  }
  static std::size_t ShiftOf(const Call& call, int own) {
    return call.apart ? static_cast<std::size_t>(own) : 3;
  }

  int Run(Call& call, std::uint32_t* nonfinite = nullptr) {
    std::vector<const void*> srcs;
    for (const Elements& src : call.srcs) srcs.push_back(src.data());
    std::vector<void*> dsts;
    for (Elements& dst : call.dsts) dsts.push_back(dst.data());
    return kernels().reduce_many(
        {srcs.data(), static_cast<int>(srcs.size()), call.own, call.src_type,
         dsts.data(), static_cast<int>(dsts.size()), call.dst_type,
         call.round_type, call.srcs[0].size(), call.op, call.scale, nonfinite,
         call.wire_type, call.last_scale},
        nullptr);
  }

  static double Expected(const Call& call, std::size_t i) {
    const DType arithmetic =
        IsGradientType(call.dst_type) ? DType::kFloat32 : call.dst_type;
    const auto source = [&](std::size_t s) {
      const double seen = call.srcs[s].Get(i);
      return IsGradientType(call.dst_type) ? RoundTo(call.wire_type, seen)
                                           : seen;
    };
    double value = source(0);
    for (std::size_t s = 1; s < call.srcs.size(); ++s) {
      value = Combine(call.op, call.dst_type, value, source(s));
    }
    value = RoundTo(arithmetic, value * double{call.scale});
    value = RoundTo(call.round_type, value);
    return RoundTo(call.dst_type,
                   RoundTo(arithmetic, value * double{call.last_scale}));
  }

  void ExpectOracle(Call call, int sources, int dests, std::size_t n) {
    AddBuffers(call, sources, dests, n);
    Scalar<std::uint32_t> nonfinite;
    ASSERT_EQ(Run(call, nonfinite.get()), 0);
    bool any = false;
    for (const Elements& dst : call.dsts) {
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_TRUE(Is(dst, i, Expected(call, i)));
        any |= IsNonFinite(dst, i);
      }
      ASSERT_TRUE(dst.CanariesIntact());
    }
    EXPECT_EQ(*nonfinite, any ? 1u : 0u);
  }

  // Compares sums of integers, bit for bit.
  void ExpectBits(Call call, int sources, std::size_t n) {
    AddBuffers(call, sources, 2, n);
    Scalar<std::uint32_t> nonfinite;
    ASSERT_EQ(Run(call, nonfinite.get()), 0);
    EXPECT_EQ(*nonfinite, 0u);
    for (std::size_t i = 0; i < n; ++i) {
      std::uint64_t bits = call.srcs[0].Bits(i);
      for (std::size_t s = 1; s < call.srcs.size(); ++s) {
        bits = CombineBits(call.op, call.dst_type, bits, call.srcs[s].Bits(i));
      }
      ASSERT_EQ(call.dsts[0].Bits(i), bits);
      ASSERT_EQ(call.dsts[1].Bits(i), bits);
    }
    ASSERT_TRUE(call.dsts[0].CanariesIntact());
    ASSERT_TRUE(call.dsts[1].CanariesIntact());
  }
};

GRADIENTFLOW_FOR_EVERY_TABLE(ReduceMany);

TEST_P(ReduceMany, ReducesAllGradientTypesRoundingsAndOps) {
  for (const DType src : kGradientTypes) {
    for (const DType dst : kGradientTypes) {
      for (const DType round : kGradientTypes) {
        for (const ReduceOp op : kOps) {
          for (const int own : {-1, 0, 2}) {
            Call call;
            call.src_type = src;
            call.dst_type = dst;
            call.round_type = round;
            call.op = op;
            call.own = own;
            call.scale = own == 2 ? 1 : 0.2f;
            ExpectOracle(call, 3, 2, 173);
          }
        }
      }
    }
  }
}

TEST_P(ReduceMany, TakesSourcesThroughTheWireAndUnscalesLast) {
  for (const DType src : kGradientTypes) {
    for (const DType dst : kGradientTypes) {
      for (const DType wire : kGradientTypes) {
        for (const ReduceOp op : kOps) {
          Call call;
          call.src_type = src;
          call.dst_type = dst;
          call.wire_type = call.round_type = wire;
          call.own = 1;
          call.op = op;
          call.scale = 0.5f;
          call.last_scale = 0.3f;
          ExpectOracle(call, 3, 2, 173);
        }
      }
    }
  }
}

TEST_P(ReduceMany, HandlesAnyNumberOfPartiesAndElements) {
  for (const int sources : {1, 2, 5, 8, kMaxParties}) {
    for (const int dests : {1, 2, 7, kMaxParties}) {
      for (const std::size_t n : kSizes) {
        Call call;
        call.src_type = DType::kFloat16;
        call.own = sources - 1;
        call.round_type = DType::kFloat16;
        call.scale = 1.0f / static_cast<float>(sources);
        ExpectOracle(call, sources, dests, n);
      }
    }
  }
}

TEST_P(ReduceMany, HandlesEveryTailLength) {
  for (std::size_t n = 0; n < 140; ++n) ExpectOracle({}, 2, 2, n);
}

TEST_P(ReduceMany, ScalesFloat64) {
  for (const ReduceOp op : kOps) {
    Call call;
    call.src_type = call.dst_type = call.round_type = DType::kFloat64;
    call.op = op;
    call.scale = 0.25f;
    ExpectOracle(call, 5, 3, 101);
  }
}

TEST_P(ReduceMany, CombinesIntegersBitForBit) {
  for (const DType type : kIntegerTypes) {
    for (const ReduceOp op : kIntegerOps) {
      for (const int sources : {1, 2, 7}) {
        for (const std::size_t n : kSizes) {
          Call call;
          call.src_type = call.dst_type = call.round_type = type;
          call.op = op;
          ASSERT_NO_FATAL_FAILURE(ExpectBits(call, sources, n));
        }
      }
    }
  }
}

// A GPU moves packs of elements if one shift aligns all buffers.
TEST_P(ReduceMany, MovesPacksOfEveryPairOfGradientTypes) {
  for (const DType src : kGradientTypes) {
    for (const DType dst : kGradientTypes) {
      for (const ReduceOp op : kOps) {
        for (const int own : {-1, 1}) {
          Call call;
          call.src_type = src;
          call.dst_type = dst;
          call.op = op;
          call.own = own;
          call.apart = false;
          ASSERT_NO_FATAL_FAILURE(
              ExpectOracle(call, 3, 2, op == ReduceOp::kSum ? 4500 : 700));
        }
      }
    }
  }
}

TEST_P(ReduceMany, MovesPacksOfEveryOtherType) {
  for (const DType type : kPlainTypes) {
    for (const std::size_t n : {40, 4500}) {
      Call call;
      call.src_type = call.dst_type = call.round_type = type;
      call.apart = false;
      if (type == DType::kFloat64) {
        ASSERT_NO_FATAL_FAILURE(ExpectOracle(call, 3, 2, n));
        continue;
      }
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kBitXor}) {
        call.op = op;
        ASSERT_NO_FATAL_FAILURE(ExpectBits(call, 3, n));
      }
    }
  }
}

TEST_P(ReduceMany, HandlesRunsOfManyBlocks) {
  for (const std::size_t n : {4099, 20011}) {
    Call call;
    call.src_type = DType::kFloat16;
    call.round_type = DType::kFloat16;
    ExpectOracle(call, 3, 2, n);
  }
}

// Two and three of them, since two have a loop of their own.
TEST_P(ReduceMany, MayWriteOverItsSources) {
  for (const int parties : {2, 3}) {
    for (const std::size_t n : kSizes) {
      Call call;
      AddBuffers(call, parties, 0, n);
      Call before = call;
      std::vector<const void*> srcs;
      std::vector<void*> dsts;
      for (Elements& src : call.srcs) {
        srcs.push_back(src.data());
        dsts.push_back(src.data());
      }
      const ReduceManyArgs args{srcs.data(),
                                parties,
                                -1,
                                DType::kFloat32,
                                dsts.data(),
                                parties,
                                DType::kFloat32,
                                DType::kFloat32,
                                n,
                                ReduceOp::kSum,
                                1,
                                nullptr};
      ASSERT_EQ(kernels().reduce_many(args, nullptr), 0);
      for (const Elements& result : call.srcs) {
        for (std::size_t i = 0; i < n; ++i) {
          ASSERT_TRUE(Is(result, i, Expected(before, i)));
        }
      }
    }
  }
}

TEST_P(ReduceMany, MinAndMaxOfANanInAnySourceAreANan) {
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    for (std::size_t source = 0; source < 3; ++source) {
      Call call;
      call.op = op;
      AddBuffers(call, 3, 1, 70);
      call.srcs[source].Set(50, NAN);
      Scalar<std::uint32_t> nonfinite;
      ASSERT_EQ(Run(call, nonfinite.get()), 0);
      EXPECT_EQ(*nonfinite, 1u);
      for (std::size_t i = 0; i < 70; ++i) {
        EXPECT_EQ(std::isnan(call.dsts[0].Get(i)), i == 50);
      }
    }
  }
}

TEST_P(ReduceMany, RefusesOperationsThatTheTypeHasNot) {
  const auto refuses = [&](DType type, ReduceOp op) {
    Call call;
    call.src_type = call.dst_type = call.round_type = type;
    call.op = op;
    AddBuffers(call, 2, 1, 70);
    const Elements before = call.dsts[0];
    return Run(call) != 0 && call.dsts[0].SameBits(before);
  };
  for (const DType type :
       {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    for (const ReduceOp op : kBitwiseOps) EXPECT_TRUE(refuses(type, op));
  }
  for (const DType type : {DType::kFloat32, DType::kInt32, DType::kUInt8}) {
    for (const int op : {4, 8, 255}) {  // 4 is the mean of collectives.
      EXPECT_TRUE(refuses(type, static_cast<ReduceOp>(op))) << op;
    }
  }
}

TEST_P(ReduceMany, RefusesCountsAndTypesOutOfRange) {
  std::vector<Call> calls(6);
  for (Call& call : calls) AddBuffers(call, 2, 1, 5);
  calls[0].own = 2;
  calls[1].own = -2;
  calls[2].src_type = DType::kFloat64;
  calls[3].dst_type = DType::kInt32;
  calls[4].round_type = DType::kInt8;
  AddBuffers(calls[5], kMaxParties, 0, 5);
  for (Call& call : calls) {
    const Elements before = call.dsts[0];
    EXPECT_NE(Run(call), 0);
    EXPECT_TRUE(call.dsts[0].SameBits(before));
  }
}

}  // namespace
}  // namespace gradientflow::kernels::testing
