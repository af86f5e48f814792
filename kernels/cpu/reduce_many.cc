#include <cstddef>

#include "kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reduce_many.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/combine-inl.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/reduce_args.h"
#include "kernels/cpu/vec-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace gradientflow::kernels::HWY_NAMESPACE {
namespace {

// Reduces kVectors vectors of each source in registers, then stores them to all
// destinations: every byte is read once and written once.
template <class S, class D, ReduceOp op>
class ReduceBlock {
 public:
  explicit ReduceBlock(const ReduceManyArgs& args)
      : args_(args),
        scale_(hn::Set(DF(), args.scale)),
        last_scale_(hn::Set(DF(), args.last_scale)) {}

  template <int kVectors, class Memory>
  HWY_INLINE void Run(std::size_t i, Memory memory) {
    VF sums[kVectors];
    ReadSource<kVectors>(0, i, memory, sums);
    for (int s = 1; s < args_.sources; ++s) {
      VF values[kVectors];
      ReadSource<kVectors>(s, i, memory, values);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sums[v] = CombineVectors<op>(sums[v], values[v]);
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sums[v] = Rounded(args_.round_type, hn::Mul(scale_, sums[v]));
      sums[v] = hn::Mul(last_scale_, sums[v]);
      watch_.See(sums[v]);
    }
    for (int d = 0; d < args_.dests; ++d) {
      D* dst = static_cast<D*>(args_.dsts[d]) + i;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        memory.Write(sums[v], dst + v * kLanes);
    }
  }

  HWY_INLINE bool NonFinite() const { return watch_.Seen(); }

 private:
  template <int kVectors, class Memory>
  HWY_INLINE void ReadSource(int source, std::size_t i, Memory memory,
                             VF* values) const {
    if (source == args_.own) {
      ReadVectors<kVectors>(static_cast<const D*>(args_.srcs[source]) + i,
                            memory, values);
    } else {
      ReadVectors<kVectors>(static_cast<const S*>(args_.srcs[source]) + i,
                            memory, values);
    }
    if (args_.wire_type == DType::kFloat32) return;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      values[v] = Rounded(args_.wire_type, values[v]);
    }
  }

  template <int kVectors, class T, class Memory>
  HWY_INLINE static void ReadVectors(const T* src, Memory memory, VF* values) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      values[v] = memory.Read(src + v * kLanes);
    }
  }

  HWY_INLINE static VF Rounded(DType type, VF v) {
    if (type == DType::kFloat16) return RoundTrip<Float16>(v);
    if (type == DType::kBFloat16) return RoundTrip<BFloat16>(v);
    return v;
  }

  const ReduceManyArgs args_;
  const VF scale_;
  const VF last_scale_;
  NonFiniteWatch<D> watch_;
};

// Two arrays of float32 that stay as they are on the wire, of two ranks that
// share memory, for example. All that the loop needs is in registers: a vector
// store could change anything in memory, so the loop above reads its pointers
// again after each.
template <ReduceOp op, int kDests>
class ReducePair {
 public:
  explicit ReducePair(const ReduceManyArgs& args)
      : a_(static_cast<const float*>(args.srcs[0])),
        b_(static_cast<const float*>(args.srcs[1])),
        first_(static_cast<float*>(args.dsts[0])),
        second_(static_cast<float*>(args.dsts[kDests - 1])),
        scale_(hn::Set(DF(), args.scale)),
        last_scale_(hn::Set(DF(), args.last_scale)) {}

  template <int kVectors, class Memory>
  HWY_INLINE void Run(std::size_t i, Memory memory) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const std::size_t at = i + static_cast<std::size_t>(v) * kLanes;
      VF sum = CombineVectors<op>(memory.Read(a_ + at), memory.Read(b_ + at));
      sum = hn::Mul(last_scale_, hn::Mul(scale_, sum));
      watch_.See(sum);
      // Two destinations are the sources, which the reads have prefetched.
      if constexpr (kDests == 1) {
        memory.Write(sum, first_ + at);
      } else {
        memory.WriteBack(sum, first_ + at);
        memory.WriteBack(sum, second_ + at);
      }
    }
  }

  HWY_INLINE bool NonFinite() const { return watch_.Seen(); }

 private:
  const float* const a_;
  const float* const b_;
  float* const first_;
  float* const second_;
  const VF scale_;
  const VF last_scale_;
  NonFiniteWatch<float> watch_;
};

template <class Block>
HWY_NOINLINE int RunBlocks(const ReduceManyArgs& args) {
  Block block(args);
  std::size_t i = 0;
  for (; i + 4 * kLanes <= args.n; i += 4 * kLanes) {
    block.template Run<4>(i, Whole());
  }
  for (; i + kLanes <= args.n; i += kLanes) block.template Run<1>(i, Whole());
  if (i < args.n) block.template Run<1>(i, Partial{args.n - i});
  if (block.NonFinite() && args.nonfinite != nullptr) *args.nonfinite = 1;
  return 0;
}

bool IsPair(const ReduceManyArgs& args) {
  if (args.sources != 2 || args.dests > 2) return false;
  if (args.src_type != DType::kFloat32 || args.dst_type != DType::kFloat32 ||
      args.wire_type != DType::kFloat32 || args.round_type != DType::kFloat32) {
    return false;
  }
  return args.dests == 1 ||
         (args.dsts[0] == args.srcs[0] && args.dsts[1] == args.srcs[1]);
}

template <class S, class D, ReduceOp op>
int RunReduceMany(const ReduceManyArgs& args) {
  if constexpr (std::is_same_v<S, float> && std::is_same_v<D, float>) {
    if (IsPair(args)) {
      return args.dests == 1 ? RunBlocks<ReducePair<op, 1>>(args)
                             : RunBlocks<ReducePair<op, 2>>(args);
    }
  }
  return RunBlocks<ReduceBlock<S, D, op>>(args);
}

}  // namespace

int ReduceMany(const ReduceManyArgs& args, void* stream) {
  if (!IsGradientType(args.dst_type) || !IsAllowed(args)) {
    return scalar::ReduceMany(args, stream);
  }
  return VisitGradientType(args.dst_type, [&](auto dst) {
    return VisitGradientType(args.src_type, [&](auto src) {
      return VisitOp<float>(args.op, [&](auto op) {
        return RunReduceMany<typename decltype(src)::Type,
                             typename decltype(dst)::Type, decltype(op)::kOp>(
            args);
      });
    });
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradientflow::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET
