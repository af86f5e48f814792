#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "gradientflow/base/dtype.h"
#include "kernels/chunk_kernels.h"
#include "kernels/kernels.h"

// One list of kernels with their inputs, for every memory: cpu_main.cc runs the
// cases on every table of this CPU against memcpy(), gpu_main.cc on a GPU
// against a copy in its memory. The result of a table is compared with that of
// a reference on the same bytes before anything is timed.
namespace gradientflow::benchmarks {

struct KernelTables {
  const kernels::KernelTable& elements;
  const kernels::ChunkKernelTable& chunks;
  // The kernels that only host memory has; null if the tables above are those
  // of a device.
  const kernels::CpuKernelTable* host = nullptr;
};

using Memory = std::vector<std::byte*>;  // By buffer.

// Where a launch works.
struct Site {
  const KernelTables& tables;
  const Memory& m;
  void* stream;

  template <typename T>
  T* as(std::size_t b) const {
    return reinterpret_cast<T*>(m[b]);
  }
};

// What a buffer of a case holds. A case is made without its bytes, which are
// many.
struct CaseBuffer {
  std::size_t bytes = 0;
  // Writes the initial bytes to `to`, for a memory that has the earlier buffers
  // at `memory`. Empty: zeros.
  std::function<void(std::byte* to, const Memory& memory)> fill = {};
  // Relative, for float32 or float64 results; 0: the same bits.
  double tolerance = 0;
  bool checked = true;  // Scratch memory and addresses are not.
  DType type = DType::kFloat32;
};

// Random normal numbers; `seed` tells the buffers of a case apart.
CaseBuffer Normal(DType type, std::size_t n, int seed);
inline CaseBuffer Zeros(std::size_t bytes) { return {bytes}; }
inline CaseBuffer Scratch(std::size_t bytes) {
  return {.bytes = bytes, .checked = false};
}
// Results that are `n` sums in `type`, float32 or float64, with an error of at
// most `tolerance`.
inline CaseBuffer Sums(DType type, std::size_t n, double tolerance) {
  return {.bytes = n * SizeOf(type), .tolerance = tolerance, .type = type};
}
template <typename T>
CaseBuffer Values(const std::vector<T>& values) {
  const auto fill = [values](std::byte* to, const Memory&) {
    std::copy(values.begin(), values.end(), reinterpret_cast<T*>(to));
  };
  return {values.size() * sizeof(T), fill};
}

struct KernelCase {
  std::string name;
  double bytes = 0;  // Read and written, at least. 0: a case of latency.
  std::vector<CaseBuffer> buffers;
  std::function<int(const Site&)> launch;
  double target = 0.85;  // On a GPU, of the copy rate; 0: none.
  double most_us = 0;    // Target for the time; 0: none.
};

inline constexpr auto kF32 = DType::kFloat32;
inline constexpr auto kF16 = DType::kFloat16;
// "f32", "f16", "bf16", "f64", "i64", ...
std::string ShortName(DType type);

// The initial bytes of `which.buffers[b]`; see CaseBuffer::fill.
std::vector<std::byte> InitialContents(const KernelCase& which, std::size_t b,
                                       const Memory& memory);

// Compares the buffers that a launch has left with those that `reference`, in
// host memory, leaves. `seen` returns the bytes of a buffer, valid until it is
// called again. Throws std::runtime_error, which names the first difference.
void Verify(const KernelCase& which, const KernelTables& reference,
            const std::function<const std::byte*(std::size_t b)>& seen);

using KernelCases = std::vector<KernelCase>;

// Every kernel of KernelTable, on `n` elements. Reductions of several buffers
// are in the next two functions, in the forms that GPUs and CPUs use.
// HostCases() adds the kernels of CpuKernelTable, and the types that are
// measured on CPUs only.
KernelCases ElementCases(std::size_t n);
KernelCases DeviceCases(std::size_t n);
KernelCases HostCases(std::size_t n);
// Every kernel of ChunkKernelTable, on a pool of `n` elements.
KernelCases ChunkCases(std::size_t n);
KernelCases TileCases(std::size_t n);
// Coarse-grained sparse communication of a pool of `n` float32 elements, of
// which 15 % travel in float16: the work before the wire, after it, and both;
// and a top-k of 4000 norms.
KernelCases CscCases(std::size_t n);

}  // namespace gradientflow::benchmarks
