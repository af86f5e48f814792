#include <cerrno>
#include <cstddef>
#include <type_traits>

#include "kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/residual.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/norm-inl.h"
#include "kernels/cpu/vec-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace gradientflow::kernels::HWY_NAMESPACE {
namespace {

enum class Fate { kSend, kKeep, kKeepAndZero };

template <class T, Fate fate>
struct ResidualBody {
  T* grads;
  float* residual;
  VF keep_factor;
  NormSlots norm;

  template <int kSlot, class Memory>
  HWY_INLINE void Apply(std::size_t i, Memory memory) {
    const VF sum = hn::Add(memory.Read(grads + i), memory.Read(residual + i));
    norm.Add<kSlot>(sum);
    if constexpr (fate == Fate::kSend) {
      memory.Write(sum, grads + i);
      memory.Write(LeftOf(sum), residual + i);
    } else {
      memory.Write(hn::Mul(keep_factor, sum), residual + i);
    }
    if constexpr (fate == Fate::kKeepAndZero) {
      memory.Write(hn::Zero(DF()), grads + i);
    }
  }

  HWY_INLINE static VF LeftOf(VF sum) {
    if constexpr (std::is_same_v<T, float>) return hn::Zero(DF());
    const VF left = hn::Sub(sum, RoundTrip<T>(sum));
    return hn::IfThenElseZero(hn::IsFinite(left), left);
  }

  HWY_INLINE void Advance(std::size_t elements) {
    grads += elements;
    residual += elements;
  }
};

// For a residual that is in the gradients.
template <class T>
struct DecayBody {
  T* grads;
  VF keep_factor;
  NormSlots norm;

  template <int kSlot, class Memory>
  HWY_INLINE void Apply(std::size_t i, Memory memory) {
    const VF sum = memory.Read(grads + i);
    norm.Add<kSlot>(sum);
    memory.Write(hn::Mul(keep_factor, sum), grads + i);
  }

  HWY_INLINE void Advance(std::size_t elements) { grads += elements; }
};

template <class T>
HWY_NOINLINE int RunDecay(const ResidualArgs& args) {
  if (args.send || args.zero_kept) return EINVAL;
  DecayBody<T> body{
      static_cast<T*>(args.grads), hn::Set(DF(), args.keep_factor), {}};
  const float norm = SumOfPieces(args.n, body);
  if (args.norm != nullptr) *args.norm += norm;
  return 0;
}

template <class T, Fate fate>
HWY_NOINLINE int RunResidual(const ResidualArgs& args) {
  ResidualBody<T, fate> body{static_cast<T*>(args.grads),
                             args.residual,
                             hn::Set(DF(), args.keep_factor),
                             {}};
  const float norm = SumOfPieces(args.n, body);
  if (args.norm != nullptr) *args.norm += norm;
  return 0;
}

}  // namespace

int Residual(const ResidualArgs& args, void*) {
  return VisitGradientType(args.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (args.residual == nullptr) return RunDecay<T>(args);
    if (args.send) return RunResidual<T, Fate::kSend>(args);
    if (args.zero_kept) return RunResidual<T, Fate::kKeepAndZero>(args);
    return RunResidual<T, Fate::kKeep>(args);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradientflow::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET
