#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/combine.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/reduce_args.h"
#include "kernels/cpu/scalar/blocks.h"

namespace gradientflow::kernels::scalar {
namespace {

template <class D, class S, ReduceOp op>
int Run(const AccumulateArgs& args) {
  D* dst = static_cast<D*>(args.dst);
  const S* src = static_cast<const S*>(args.src);
  bool nonfinite = false;
  for (std::size_t i = 0; i < args.n; ++i) {
    const float sum =
        Combine<op>(args.dst_scale * ToFloat(dst[i]), ToFloat(src[i]));
    dst[i] = FromFloat<D>(args.out_scale * sum);
    nonfinite |= IsNonFinite(dst[i]);
  }
  if (nonfinite && args.nonfinite != nullptr) *args.nonfinite = 1;
  return 0;
}

// For a type that does not convert to others.
template <class T, ReduceOp op>
int RunPlain(const AccumulateArgs& args) {
  [[maybe_unused]] const T dst_scale = static_cast<T>(args.dst_scale);
  [[maybe_unused]] const T out_scale = static_cast<T>(args.out_scale);
  std::uint64_t nonfinite = 0;
  ForEachBlock(args.n, [&](std::size_t begin, auto count) {
    T* dst = static_cast<T*>(args.dst) + begin;
    const T* src = static_cast<const T*>(args.src) + begin;
    T values[kBlock];
    std::memcpy(values, dst, count * sizeof(T));
    for (std::size_t i = 0; i < count; ++i) {
      if constexpr (std::is_integral_v<T>) {
        values[i] = Combine<op>(values[i], src[i]);
      } else {
        values[i] = out_scale * Combine<op>(dst_scale * values[i], src[i]);
        nonfinite |= NonFiniteBits(values[i]);
      }
    }
    std::memcpy(dst, values, count * sizeof(T));
  });
  if (nonfinite != 0 && args.nonfinite != nullptr) *args.nonfinite = 1;
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
    return VisitOp<T>(
        args.op, [&](auto op) { return RunPlain<T, decltype(op)::kOp>(args); });
  });
}

}  // namespace gradientflow::kernels::scalar
