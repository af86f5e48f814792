#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/element.h"
#include "kernels/cpu/functions.h"

namespace gradientflow::kernels::scalar {
namespace {

template <class S, class D>
int Run(const ConvertArgs& args) {
  const S* src = static_cast<const S*>(args.src);
  D* dst = static_cast<D*>(args.dst);
  S* settled = static_cast<S*>(args.settled);
  bool nonfinite = false;
  for (std::size_t i = 0; i < args.n; ++i) {
    const D value = FromFloat<D>(args.scale * ToFloat(src[i]));
    dst[i] = value;
    nonfinite |= IsNonFinite(value);
    if (settled != nullptr) {
      settled[i] = FromFloat<S>(args.settled_scale * ToFloat(value));
      nonfinite |= IsNonFinite(settled[i]);
    }
  }
  if (nonfinite && args.nonfinite != nullptr) *args.nonfinite = 1;
  return 0;
}

template <class T>
int Copy(const ConvertArgs& args) {
  const T* src = static_cast<const T*>(args.src);
  const std::size_t bytes = args.n * sizeof(T);
  if (bytes == 0) return 0;
  if (args.dst != args.src) std::memcpy(args.dst, src, bytes);
  if (args.settled != nullptr && args.settled != args.src) {
    std::memcpy(args.settled, src, bytes);
  }
  if (args.nonfinite == nullptr) return 0;
  for (std::size_t i = 0; i < args.n; ++i) {
    if (IsNonFinite(src[i])) *args.nonfinite = 1;
  }
  return 0;
}

}  // namespace

int Convert(const ConvertArgs& args, void*) {
  if (IsCopy(args)) {
    const auto copy = [&](auto tag) {
      return Copy<typename decltype(tag)::Type>(args);
    };
    return IsGradientType(args.src_type)
               ? VisitGradientType(args.src_type, copy)
               : VisitPlainType(args.src_type, copy);
  }
  return VisitGradientType(args.src_type, [&](auto src) {
    return VisitGradientType(args.dst_type, [&](auto dst) {
      return Run<typename decltype(src)::Type, typename decltype(dst)::Type>(
          args);
    });
  });
}

}  // namespace gradientflow::kernels::scalar
