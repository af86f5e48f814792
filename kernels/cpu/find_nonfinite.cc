#include "kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/find_nonfinite.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/vec-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace gradientflow::kernels::HWY_NAMESPACE {
namespace {

template <class T>
HWY_NOINLINE int RunFindNonfinite(const FindNonfiniteArgs& args) {
  WatchBody<T> body{static_cast<const T*>(args.src), {}};
  ForEachVector(args.n, body);
  if (body.watch.Seen()) *args.nonfinite = 1;
  return 0;
}

}  // namespace

int FindNonfinite(const FindNonfiniteArgs& args, void*) {
  return VisitGradientType(args.type, [&](auto tag) {
    return RunFindNonfinite<typename decltype(tag)::Type>(args);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradientflow::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET
