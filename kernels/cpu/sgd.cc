#include <cstddef>

#include "kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sgd.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/vec-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace gradientflow::kernels::HWY_NAMESPACE {
namespace {

template <class T, bool kNesterov>
struct SgdBody {
  float* weights;
  float* momentum_buf;
  const T* grads;
  VF lr;
  VF momentum;
  VF weight_decay;
  VF grad_scale;

  template <int kSlot, class Memory>
  HWY_INLINE void Apply(std::size_t i, Memory memory) {
    const VF weight = memory.Read(weights + i);
    const VF grad = hn::Mul(grad_scale, memory.Read(grads + i));
    const VF step = hn::Mul(lr, hn::Add(grad, hn::Mul(weight_decay, weight)));
    const VF old = memory.Read(momentum_buf + i);
    const VF moved = hn::Add(hn::Mul(momentum, old), step);
    memory.Write(moved, momentum_buf + i);
    const VF change =
        kNesterov ? hn::Add(hn::Mul(momentum, moved), step) : moved;
    memory.Write(hn::Sub(weight, change), weights + i);
  }
};

template <class T, bool kNesterov>
HWY_NOINLINE int RunSgd(const SgdArgs& args) {
  SgdBody<T, kNesterov> body{args.weights,
                             args.momentum_buf,
                             static_cast<const T*>(args.grads),
                             hn::Set(DF(), args.lr),
                             hn::Set(DF(), args.momentum),
                             hn::Set(DF(), args.weight_decay),
                             hn::Set(DF(), args.grad_scale)};
  ForEachVector(args.n, body);
  return 0;
}

}  // namespace

int Sgd(const SgdArgs& args, void*) {
  return VisitGradientType(args.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (args.nesterov) return RunSgd<T, true>(args);
    return RunSgd<T, false>(args);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradientflow::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET
