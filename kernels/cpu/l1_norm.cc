#include <cstddef>

#include "kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/l1_norm.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/norm-inl.h"
#include "kernels/cpu/vec-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace gradientflow::kernels::HWY_NAMESPACE {
namespace {

template <class T>
struct L1NormBody {
  const T* src;
  NormSlots norm;

  template <int kSlot, class Memory>
  HWY_INLINE void Apply(std::size_t i, Memory memory) {
    norm.Add<kSlot>(memory.Read(src + i));
  }

  HWY_INLINE void Advance(std::size_t elements) { src += elements; }
};

template <class T>
HWY_NOINLINE int RunL1Norm(const L1NormArgs& args) {
  L1NormBody<T> body{static_cast<const T*>(args.src), {}};
  *args.norm += args.scale * SumOfPieces(args.n, body);
  return 0;
}

}  // namespace

int L1Norm(const L1NormArgs& args, void*) {
  return VisitGradientType(args.type, [&](auto tag) {
    return RunL1Norm<typename decltype(tag)::Type>(args);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradientflow::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET
