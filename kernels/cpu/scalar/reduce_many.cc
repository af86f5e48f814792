#include <cstddef>
#include <type_traits>

#include "kernels/cpu/combine.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/reduce_args.h"

namespace gradientflow::kernels::scalar {
namespace {

template <class S, class D>
ComputeType<D> LoadSource(const ReduceManyArgs& args, int source,
                          std::size_t i) {
  const void* data = args.srcs[source];
  if (source == args.own) return Widen(static_cast<const D*>(data)[i]);
  return Widen(static_cast<const S*>(data)[i]);
}

float RoundTo(DType type, float value) {
  switch (type) {
    case DType::kFloat16:
      return ToFloat(FromFloat<Float16>(value));
    case DType::kBFloat16:
      return ToFloat(FromFloat<BFloat16>(value));
    default:
      return value;
  }
}

template <class S, class D, ReduceOp op>
int Run(const ReduceManyArgs& args) {
  using C = ComputeType<D>;
  bool nonfinite = false;
  for (std::size_t i = 0; i < args.n; ++i) {
    C value = LoadSource<S, D>(args, 0, i);
    for (int s = 1; s < args.sources; ++s) {
      value = Combine<op>(value, LoadSource<S, D>(args, s, i));
    }
    if constexpr (!std::is_integral_v<D>) {
      value = static_cast<C>(args.scale) * value;
    }
    if constexpr (kIsGradient<D>) value = RoundTo(args.round_type, value);
    const D result = Narrow<D>(value);
    nonfinite |= IsNonFinite(result);
    for (int d = 0; d < args.dests; ++d) {
      static_cast<D*>(args.dsts[d])[i] = result;
    }
  }
  if (nonfinite && args.nonfinite != nullptr) *args.nonfinite = 1;
  return 0;
}

template <class S, class D>
int VisitOps(const ReduceManyArgs& args) {
  return VisitOp<D>(
      args.op, [&](auto op) { return Run<S, D, decltype(op)::kOp>(args); });
}

}  // namespace

int ReduceMany(const ReduceManyArgs& args, void*) {
  if (!IsAllowed(args)) return kBadArgs;
  if (IsGradientType(args.dst_type)) {
    return VisitGradientType(args.dst_type, [&](auto dst) {
      return VisitGradientType(args.src_type, [&](auto src) {
        return VisitOps<typename decltype(src)::Type,
                        typename decltype(dst)::Type>(args);
      });
    });
  }
  return VisitPlainType(args.dst_type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    return VisitOps<T, T>(args);
  });
}

}  // namespace gradientflow::kernels::scalar
