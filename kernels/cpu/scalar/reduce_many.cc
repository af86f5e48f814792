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

template <class S, class D>
float LoadSource(const ReduceManyArgs& args, int source, std::size_t i) {
  const void* data = args.srcs[source];
  const float value = source == args.own
                          ? ToFloat(static_cast<const D*>(data)[i])
                          : ToFloat(static_cast<const S*>(data)[i]);
  return RoundTo(args.wire_type, value);
}

template <class S, class D, ReduceOp op>
int Run(const ReduceManyArgs& args) {
  bool nonfinite = false;
  for (std::size_t i = 0; i < args.n; ++i) {
    float value = LoadSource<S, D>(args, 0, i);
    for (int s = 1; s < args.sources; ++s) {
      value = Combine<op>(value, LoadSource<S, D>(args, s, i));
    }
    value = RoundTo(args.round_type, args.scale * value);
    const D result = FromFloat<D>(args.last_scale * value);
    nonfinite |= IsNonFinite(result);
    for (int d = 0; d < args.dests; ++d) {
      static_cast<D*>(args.dsts[d])[i] = result;
    }
  }
  if (nonfinite && args.nonfinite != nullptr) *args.nonfinite = 1;
  return 0;
}

// For a type that does not convert to others.
template <class T, ReduceOp op>
int RunPlain(const ReduceManyArgs& args) {
  std::uint64_t nonfinite = 0;
  ForEachBlock(args.n, [&](std::size_t begin, auto count) {
    const std::size_t bytes = count * sizeof(T);
    T values[kBlock];
    std::memcpy(values, static_cast<const T*>(args.srcs[0]) + begin, bytes);
    for (int s = 1; s < args.sources; ++s) {
      const T* src = static_cast<const T*>(args.srcs[s]) + begin;
      for (std::size_t i = 0; i < count; ++i) {
        values[i] = Combine<op>(values[i], src[i]);
      }
    }
    if constexpr (!std::is_integral_v<T>) {
      for (std::size_t i = 0; i < count; ++i) {
        values[i] = static_cast<T>(args.scale) * values[i];
        nonfinite |= NonFiniteBits(values[i]);
      }
    }
    for (int d = 0; d < args.dests; ++d) {
      std::memcpy(static_cast<T*>(args.dsts[d]) + begin, values, bytes);
    }
  });
  if (nonfinite != 0 && args.nonfinite != nullptr) *args.nonfinite = 1;
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
    return VisitOp<T>(
        args.op, [&](auto op) { return RunPlain<T, decltype(op)::kOp>(args); });
  });
}

}  // namespace gradientflow::kernels::scalar
