#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gradientflow/base/dtype.h"
#include "kernels/chunk_kernels.h"
#include "kernels/kernels.h"

namespace gradientflow::benchmarks {

// One kernel on buffers of its own, for any table: what it does on the device
// is compared with what the CPU's tables do to the same bytes.
struct KernelTables {
  const kernels::KernelTable& elements;
  const kernels::ChunkKernelTable& chunks;
};

struct CaseBuffer {
  std::vector<std::byte> contents;  // At first.
  // Not empty: instead of `contents`, the addresses of these bytes of another
  // buffer, `target`.
  std::vector<std::size_t> pointers;
  std::size_t target = 0;
  // Of float32 or float64 results, relative; 0: the same bits.
  double tolerance = 0;
  bool checked = true;  // Scratch memory is not.
  DType type = DType::kFloat32;

  std::size_t bytes() const {
    return pointers.empty() ? contents.size() : pointers.size() * sizeof(void*);
  }
};

struct KernelCase {
  // By buffer.
  using Memory = std::vector<std::byte*>;

  std::string name;
  double bytes = 0;      // Read and written, at least. 0: latency is the point.
  double target = 0.85;  // Of the copy rate, where bytes is not 0; 0: none.
  double most_us = 0;    // Target for the time; 0: none.
  std::vector<CaseBuffer> buffers;
  std::function<int(const KernelTables&, const Memory&, void* stream)> launch;

  // Each adds a buffer and returns its number.
  std::size_t AddNormal(DType type, std::size_t n);  // Random, all different.
  std::size_t AddZeros(std::size_t size);            // Bytes.
  template <typename T>
  std::size_t Add(const std::vector<T>& values) {
    const auto* begin = reinterpret_cast<const std::byte*>(values.data());
    CaseBuffer buffer;
    buffer.contents.assign(begin, begin + values.size() * sizeof(T));
    buffers.push_back(std::move(buffer));
    return buffers.size() - 1;
  }
};

// Cases are made one at a time: they are large.
using MakeCase = std::function<KernelCase()>;

// Every kernel of KernelTable, on `n` elements.
std::vector<MakeCase> ElementCases(std::size_t n);
// Every kernel of ChunkKernelTable, on a pool of `n` elements.
std::vector<MakeCase> ChunkCases(std::size_t n);
KernelCase TopKCase();  // Of 4000 norms.
std::vector<MakeCase> TileCases(std::size_t n);
// Coarse-grained sparse communication of a pool of `n` float32 elements, of
// which 15 % travel in float16: all that is done before the wire, after it, and
// both.
std::vector<MakeCase> CscPathCases(std::size_t n);

}  // namespace gradientflow::benchmarks
