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

template <class S, class D, ReduceOp op>
HWY_NOINLINE int RunReduceMany(const ReduceManyArgs& args) {
  ReduceBlock<S, D, op> block(args);
  std::size_t i = 0;
  for (; i + 4 * kLanes <= args.n; i += 4 * kLanes) {
    block.template Run<4>(i, Whole());
  }
  for (; i + kLanes <= args.n; i += kLanes) block.template Run<1>(i, Whole());
  if (i < args.n) block.template Run<1>(i, Partial{args.n - i});
  if (block.NonFinite() && args.nonfinite != nullptr) *args.nonfinite = 1;
  return 0;
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
