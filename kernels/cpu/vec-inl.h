// Vectors of gradient elements, and the loop over them. Compiled once per
// instruction set: the include guard toggles, like those of Highway's own
// headers.
#if defined(GRADIENTFLOW_KERNELS_VEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADIENTFLOW_KERNELS_VEC_INL_H_
#undef GRADIENTFLOW_KERNELS_VEC_INL_H_
#else
#define GRADIENTFLOW_KERNELS_VEC_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/element.h"

HWY_BEFORE_NAMESPACE();
namespace gradientflow::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using DF16 = hn::Rebind<hwy::float16_t, DF>;
using DU16 = hn::Rebind<std::uint16_t, DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using VU = hn::Vec<DU>;
inline constexpr std::size_t kLanes = HWY_LANES(float);

// Loads kLanes elements from p, as float32.
HWY_INLINE VF Load(const float* p) { return hn::LoadU(DF(), p); }

HWY_INLINE VF Load(const Float16* p) {
  const auto* half = reinterpret_cast<const hwy::float16_t*>(p);
  return hn::PromoteTo(DF(), hn::LoadU(DF16(), half));
}

HWY_INLINE VF Load(const BFloat16* p) {
  const auto* upper = reinterpret_cast<const std::uint16_t*>(p);
  const VU wide = hn::PromoteTo(DU(), hn::LoadU(DU16(), upper));
  return hn::BitCast(DF(), hn::ShiftLeft<16>(wide));
}

// Stores v to kLanes elements at p, rounded to nearest, ties to even.
HWY_INLINE void Store(VF v, float* p) { hn::StoreU(v, DF(), p); }

HWY_INLINE void Store(VF v, Float16* p) {
  auto* half = reinterpret_cast<hwy::float16_t*>(p);
  hn::StoreU(hn::DemoteTo(DF16(), v), DF16(), half);
}

// Highway 1.0.3 truncates to bfloat16, so this rounds the bits itself. A NaN
// becomes quiet, as after arithmetic; it is not rounded, since a carry could
// turn it into a zero.
HWY_INLINE VU RoundedToBFloat16(VF v) {
  const VI positive = hn::Min(hn::BitCast(DI(), v), hn::Set(DI(), 0x7FFF7FFF));
  const VU bits =
      hn::Min(hn::BitCast(DU(), positive), hn::Set(DU(), 0xFFFF7FFF));
  const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(DU(), 1));
  const VU rounded = hn::Add(hn::Add(bits, hn::Set(DU(), 0x7FFF)), odd);
  return hn::ShiftRight<16>(rounded);
}

HWY_INLINE void Store(VF v, BFloat16* p) {
  auto* upper = reinterpret_cast<std::uint16_t*>(p);
  const VI bits = hn::BitCast(DI(), RoundedToBFloat16(v));
  hn::StoreU(hn::DemoteTo(DU16(), bits), DU16(), upper);
}

// The value of v when it is read back from a T.
template <class T>
HWY_INLINE VF RoundTrip(VF v) {
  if constexpr (std::is_same_v<T, Float16>) {
    return hn::PromoteTo(DF(), hn::DemoteTo(DF16(), v));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return hn::BitCast(DF(), hn::ShiftLeft<16>(RoundedToBFloat16(v)));
  } else {
    return v;
  }
}

// How far ahead the loops prefetch memory. On buffers of 64 MiB this gained 10
// to 40 % over the hardware's own prefetching, most where the destination is
// only written; in cache it costs 0 to 5 % (a bare norm: 12 %). Non-temporal
// stores would evict a segment from the cache just before it is sent.
inline constexpr std::uintptr_t kReadAheadBytes = 2048;
inline constexpr std::uintptr_t kWriteAheadBytes = 1024;

// The address may lie past the end of the buffer: a prefetch never faults.
HWY_INLINE void PrefetchAhead(const void* p, std::uintptr_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(p) + bytes;
  hwy::Prefetch(reinterpret_cast<const char*>(address));
}

// The body of a kernel's loop accesses memory through Whole or the type below:
// whole vectors, or the last `count` < kLanes elements, which go through a
// buffer on the stack so that nothing past them is touched. The unused lanes
// read as zero.
struct Whole {
  template <class T>
  HWY_INLINE VF Read(const T* p) const {
    PrefetchAhead(p, kReadAheadBytes);
    return Load(p);
  }
  template <class T>
  HWY_INLINE void Write(VF v, T* p) const {
    PrefetchAhead(p, kWriteAheadBytes);
    Store(v, p);
  }
  // For memory that is read at the same place.
  template <class T>
  HWY_INLINE void WriteBack(VF v, T* p) const {
    Store(v, p);
  }
};

struct Partial {
  std::size_t count;

  template <class T>
  HWY_INLINE VF Read(const T* p) const {
    alignas(64) T lanes[kLanes] = {};
    std::memcpy(lanes, p, count * sizeof(T));
    return Load(lanes);
  }
  template <class T>
  HWY_INLINE void Write(VF v, T* p) const {
    alignas(64) T lanes[kLanes];
    Store(v, lanes);
    std::memcpy(p, lanes, count * sizeof(T));
  }
  template <class T>
  HWY_INLINE void WriteBack(VF v, T* p) const {
    Write(v, p);
  }
};

// Calls body.template Apply<slot>(i, memory) for i = 0, kLanes, 2 kLanes, ...
// `slot` cycles through 0 .. 3: a body keeps one sum per slot, so that an
// addition need not wait for the one before.
inline constexpr int kSlots = 4;

template <class Body>
HWY_INLINE void ForEachVector(std::size_t n, Body& body) {
  std::size_t i = 0;
  for (; i + kSlots * kLanes <= n; i += kSlots * kLanes) {
    body.template Apply<0>(i, Whole());
    body.template Apply<1>(i + kLanes, Whole());
    body.template Apply<2>(i + 2 * kLanes, Whole());
    body.template Apply<3>(i + 3 * kLanes, Whole());
  }
  for (; i + kLanes <= n; i += kLanes) body.template Apply<0>(i, Whole());
  if (i < n) body.template Apply<0>(i, Partial{n - i});
}

// Tracks the largest magnitude of the values that are written as T.
template <class T>
class NonFiniteWatch {
 public:
  // Not a member initializer: that would be compiled for the baseline.
  HWY_INLINE NonFiniteWatch() : largest_(hn::Zero(DI())) {}

  HWY_INLINE void See(VF v) {
    const VI magnitude =
        hn::And(hn::BitCast(DI(), v), hn::Set(DI(), 0x7FFFFFFF));
    largest_ = hn::Max(largest_, magnitude);
  }

  HWY_INLINE bool Seen() const {
    constexpr auto kFirst = static_cast<std::int32_t>(kFirstNonFinite<T>);
    return !hn::AllTrue(DI(), hn::Lt(largest_, hn::Set(DI(), kFirst)));
  }

 private:
  VI largest_;
};

// A pass that only looks. Widening is exact, and preserves infinities and NaNs.
template <class T>
struct WatchBody {
  const T* src;
  NonFiniteWatch<float> watch;

  template <int kSlot, class Memory>
  HWY_INLINE void Apply(std::size_t i, Memory memory) {
    watch.See(memory.Read(src + i));
  }
};

HWY_INLINE float SumOfLanes(VF v) {
  return hn::GetLane(hn::SumOfLanes(DF(), v));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradientflow::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
