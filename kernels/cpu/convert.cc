#include <cstddef>
#include <cstring>

#include "kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/convert.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/vec-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace gradientflow::kernels::HWY_NAMESPACE {
namespace {

template <class S, class D, bool kSettle>
struct ConvertBody {
  const S* src;
  D* dst;
  S* settled;
  VF scale;
  VF settled_scale;
  NonFiniteWatch<D> dst_watch;
  NonFiniteWatch<S> settled_watch;

  template <int kSlot, class Memory>
  HWY_INLINE void Apply(std::size_t i, Memory memory) {
    const VF value = hn::Mul(scale, memory.Read(src + i));
    memory.Write(value, dst + i);
    dst_watch.See(value);
    if constexpr (kSettle) {
      const VF kept = hn::Mul(settled_scale, RoundTrip<D>(value));
      memory.Write(kept, settled + i);
      settled_watch.See(kept);
    }
  }
};

template <class S, class D, bool kSettle>
HWY_NOINLINE int RunConvert(const ConvertArgs& args) {
  ConvertBody<S, D, kSettle> body{static_cast<const S*>(args.src),
                                  static_cast<D*>(args.dst),
                                  static_cast<S*>(args.settled),
                                  hn::Set(DF(), args.scale),
                                  hn::Set(DF(), args.settled_scale),
                                  {},
                                  {}};
  ForEachVector(args.n, body);
  const bool seen = body.dst_watch.Seen() || body.settled_watch.Seen();
  if (seen && args.nonfinite != nullptr) *args.nonfinite = 1;
  return 0;
}

// A copy that checks each piece while it is in the first-level cache.
template <class T>
HWY_NOINLINE int RunWatchedCopy(const ConvertArgs& args) {
  constexpr std::size_t kPiece = 16384 / sizeof(T);
  WatchBody<T> body{static_cast<const T*>(args.src), {}};
  const T* src = body.src;
  for (std::size_t i = 0; i < args.n; i += kPiece) {
    const std::size_t count = HWY_MIN(kPiece, args.n - i);
    const std::size_t bytes = count * sizeof(T);
    T* dst = static_cast<T*>(args.dst) + i;
    T* settled = static_cast<T*>(args.settled);
    if (dst != src + i) std::memcpy(dst, src + i, bytes);
    if (settled != nullptr && settled != src) {
      std::memcpy(settled + i, src + i, bytes);
    }
    body.src = src + i;
    ForEachVector(count, body);
  }
  if (body.watch.Seen()) *args.nonfinite = 1;
  return 0;
}

template <class S, class D>
int VisitSettle(const ConvertArgs& args) {
  if (args.settled != nullptr) return RunConvert<S, D, true>(args);
  return RunConvert<S, D, false>(args);
}

}  // namespace

int Convert(const ConvertArgs& args, void* stream) {
  const bool is_copy = IsCopy(args);
  if (is_copy &&
      (args.nonfinite == nullptr || !IsGradientType(args.src_type))) {
    return scalar::Convert(args, stream);
  }
  return VisitGradientType(args.src_type, [&](auto src) {
    using S = typename decltype(src)::Type;
    if (is_copy) return RunWatchedCopy<S>(args);
    return VisitGradientType(args.dst_type, [&](auto dst) {
      return VisitSettle<S, typename decltype(dst)::Type>(args);
    });
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradientflow::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET
