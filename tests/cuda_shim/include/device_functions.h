#pragma once

// The built-ins that kernels call; only to be included by cuda_runtime.h.
// NOLINTBEGIN(readability-identifier-naming,bugprone-reserved-identifier)

struct uint3 {
  unsigned x, y, z;
};
// The position of the running thread. Not const, since the scheduler sets it.
extern __thread uint3 threadIdx;
extern __thread uint3 blockIdx;
extern __thread uint3 blockDim;
extern __thread uint3 gridDim;
inline constexpr int warpSize = 32;

namespace gradientflow::cuda_shim {

// A place in the source where threads meet.
struct Site {
  const char* what;
  const char* file;
  int line;
};

// One lane's part in an exchange of its warp. `result` is the value of lane
// `source`, or with kVotes the mask of the lanes whose value is not 0.
inline constexpr unsigned kVotes = 0xFFFFFFFFU;
struct WarpCall {
  Site site;
  unsigned mask;
  std::uint64_t value;
  unsigned source;
  std::uint64_t result;
};

void Barrier(const Site& site);
std::uint64_t Exchange(WarpCall call);
void WarpBarrier(const Site& site, unsigned mask);
// A point where the scheduler may switch to another thread.
void MayYield();
void Fence();
// Aborts.
[[noreturn]] void Misaligned(const char* what, const void* pointer,
                             std::size_t alignment);

template <typename T>
T Shuffle(const Site& site, unsigned mask, T value, unsigned source) {
  static_assert(std::is_arithmetic_v<T>);
  WarpCall call = {site, mask, 0, source, 0};
  std::memcpy(&call.value, &value, sizeof(T));
  const std::uint64_t result = Exchange(call);
  std::memcpy(&value, &result, sizeof(T));
  return value;
}

inline unsigned LaneId() { return threadIdx.x % 32; }

template <typename T>
void CheckAligned(const char* what, const T* pointer) {
  if (reinterpret_cast<std::uintptr_t>(pointer) % sizeof(T) != 0) {
    Misaligned(what, pointer, sizeof(T));
  }
}

}  // namespace gradientflow::cuda_shim

// Waits until all threads of the block are at this line.
inline void __syncthreads(const char* file = __builtin_FILE(),
                          int line = __builtin_LINE()) {
  gradientflow::cuda_shim::Barrier({"__syncthreads", file, line});
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFU,
                       const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  gradientflow::cuda_shim::WarpBarrier({"__syncwarp", file, line}, mask);
}

// Shuffles work on whole warps: there is no `width`.
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane,
              const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  return gradientflow::cuda_shim::Shuffle({"__shfl_sync", file, line}, mask,
                                          value,
                                          static_cast<unsigned>(lane) % 32);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes,
                  const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  const unsigned own = gradientflow::cuda_shim::LaneId();
  const unsigned other = own ^ static_cast<unsigned>(lanes);
  return gradientflow::cuda_shim::Shuffle({"__shfl_xor_sync", file, line}, mask,
                                          value, other < 32 ? other : own);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta,
                 const char* file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
  const unsigned own = gradientflow::cuda_shim::LaneId();
  return gradientflow::cuda_shim::Shuffle({"__shfl_up_sync", file, line}, mask,
                                          value,
                                          delta <= own ? own - delta : own);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta,
                   const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
  const unsigned own = gradientflow::cuda_shim::LaneId();
  return gradientflow::cuda_shim::Shuffle({"__shfl_down_sync", file, line},
                                          mask, value,
                                          delta < 32 - own ? own + delta : own);
}
inline unsigned __ballot_sync(unsigned mask, int vote,
                              const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
  namespace shim = gradientflow::cuda_shim;
  return static_cast<unsigned>(
      shim::Exchange({{"__ballot_sync", file, line},
                      mask,
                      static_cast<std::uint64_t>(vote != 0),
                      shim::kVotes,
                      0}));
}
inline int __any_sync(unsigned mask, int vote,
                      const char* file = __builtin_FILE(),
                      int line = __builtin_LINE()) {
  return static_cast<int>(__ballot_sync(mask, vote, file, line) != 0);
}
inline int __all_sync(unsigned mask, int vote,
                      const char* file = __builtin_FILE(),
                      int line = __builtin_LINE()) {
  return static_cast<int>(__ballot_sync(mask, vote, file, line) == ~0U);
}

inline void __threadfence() { gradientflow::cuda_shim::Fence(); }
inline void __threadfence_block() { gradientflow::cuda_shim::Fence(); }

namespace gradientflow::cuda_shim {
// Replaces *pointer by change(*pointer), and returns the old value. Like CUDA's
// atomics it is relaxed: it orders nothing else.
template <typename Change>
unsigned Atomic(const char* what, unsigned* pointer, Change change) {
  CheckAligned(what, pointer);
  MayYield();
  unsigned old = __atomic_load_n(pointer, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(pointer, &old, change(old), false,
                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  MayYield();
  return old;
}
}  // namespace gradientflow::cuda_shim

inline unsigned atomicAdd(unsigned* pointer, unsigned value) {
  return gradientflow::cuda_shim::Atomic(
      "atomicAdd", pointer, [&](unsigned old) { return old + value; });
}
inline unsigned atomicOr(unsigned* pointer, unsigned value) {
  return gradientflow::cuda_shim::Atomic(
      "atomicOr", pointer, [&](unsigned old) { return old | value; });
}
inline unsigned atomicMax(unsigned* pointer, unsigned value) {
  return gradientflow::cuda_shim::Atomic(
      "atomicMax", pointer,
      [&](unsigned old) { return old > value ? old : value; });
}
inline unsigned atomicExch(unsigned* pointer, unsigned value) {
  return gradientflow::cuda_shim::Atomic("atomicExch", pointer,
                                         [&](unsigned) { return value; });
}

// Streaming loads and stores, aligned to their size as on a GPU.
template <typename T>
T __ldcs(const T* pointer) {
  static_assert(sizeof(T) <= 16);
  gradientflow::cuda_shim::CheckAligned("__ldcs", pointer);
  return *pointer;
}
template <typename T>
void __stcs(T* pointer, T value) {
  static_assert(sizeof(T) <= 16);
  gradientflow::cuda_shim::CheckAligned("__stcs", pointer);
  *pointer = value;
}

inline int __popc(unsigned v) { return std::popcount(v); }
inline int __clz(int v) { return std::countl_zero(static_cast<unsigned>(v)); }
inline int __ffs(int v) {
  return v == 0 ? 0 : std::countr_zero(static_cast<unsigned>(v)) + 1;
}
inline unsigned __float_as_uint(float v) { return std::bit_cast<unsigned>(v); }
inline float __uint_as_float(unsigned v) { return std::bit_cast<float>(v); }
inline int __float_as_int(float v) { return std::bit_cast<int>(v); }
inline float __int_as_float(int v) { return std::bit_cast<float>(v); }

// NOLINTEND(readability-identifier-naming,bugprone-reserved-identifier)
