#include <cstddef>
#include <type_traits>

#include "kernels/cpu/combine.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/reduce_args.h"

namespace gradientflow::kernels::scalar {
namespace {

template <class D, class S, ReduceOp op>
int Run(const AccumulateArgs& args) {
  using C = ComputeType<D>;
  D* dst = static_cast<D*>(args.dst);
  const S* src = static_cast<const S*>(args.src);
  const C dst_scale = static_cast<C>(args.dst_scale);
  const C out_scale = static_cast<C>(args.out_scale);
  bool nonfinite = false;
  for (std::size_t i = 0; i < args.n; ++i) {
    C value = Widen(dst[i]);
    if constexpr (std::is_integral_v<D>) {
      value = Combine<op>(value, Widen(src[i]));
    } else {
      value = out_scale * Combine<op>(dst_scale * value, Widen(src[i]));
    }
    dst[i] = Narrow<D>(value);
    nonfinite |= IsNonFinite(dst[i]);
  }
  if (nonfinite && args.nonfinite != nullptr) *args.nonfinite = 1;
  return 0;
}

template <class D, class S>
int VisitOps(const AccumulateArgs& args) {
  return VisitOp<D>(
      args.op, [&](auto op) { return Run<D, S, decltype(op)::kOp>(args); });
}

}  // namespace

int Accumulate(const AccumulateArgs& args, void*) {
  if (!IsAllowed(args)) return kBadArgs;
  if (IsGradientType(args.dst_type)) {
    return VisitGradientType(args.dst_type, [&](auto dst) {
      return VisitGradientType(args.src_type, [&](auto src) {
        return VisitOps<typename decltype(dst)::Type,
                        typename decltype(src)::Type>(args);
      });
    });
  }
  return VisitPlainType(args.dst_type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    return VisitOps<T, T>(args);
  });
}

}  // namespace gradientflow::kernels::scalar
