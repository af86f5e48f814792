#include <cstddef>

#include "kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/accumulate.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/combine-inl.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/vec-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace gradientflow::kernels::HWY_NAMESPACE {
namespace {

template <class D, class S, ReduceOp op>
struct AccumulateBody {
  D* dst;
  const S* src;
  VF dst_scale;
  VF out_scale;
  NonFiniteWatch<D> watch;

  template <int kSlot, class Memory>
  HWY_INLINE void Apply(std::size_t i, Memory memory) {
    const VF old = hn::Mul(dst_scale, memory.Read(dst + i));
    const VF both = CombineVectors<op>(old, memory.Read(src + i));
    const VF value = hn::Mul(out_scale, both);
    memory.Write(value, dst + i);
    watch.See(value);
  }
};

template <class D, class S, ReduceOp op>
HWY_NOINLINE int RunAccumulate(const AccumulateArgs& args) {
  AccumulateBody<D, S, op> body{static_cast<D*>(args.dst),
                                static_cast<const S*>(args.src),
                                hn::Set(DF(), args.dst_scale),
                                hn::Set(DF(), args.out_scale),
                                {}};
  ForEachVector(args.n, body);
  if (body.watch.Seen() && args.nonfinite != nullptr) *args.nonfinite = 1;
  return 0;
}

}  // namespace

int Accumulate(const AccumulateArgs& args, void* stream) {
  if (!IsGradientType(args.dst_type)) return scalar::Accumulate(args, stream);
  return VisitGradientType(args.dst_type, [&](auto dst) {
    return VisitGradientType(args.src_type, [&](auto src) {
      return VisitOp<float>(args.op, [&](auto op) {
        return RunAccumulate<typename decltype(dst)::Type,
                             typename decltype(src)::Type, decltype(op)::kOp>(
            args);
      });
    });
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradientflow::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET
