#include <cstdint>
#include <utility>

#include "benchmarks/gpu/chunk_pool.h"
#include "benchmarks/gpu/kernel_case.h"

// What gradientflow/csc/sparse.h does to a pool in one step, but
// for the wire.
namespace gradientflow::benchmarks {
namespace {

using Memory = KernelCase::Memory;

constexpr auto kF32 = DType::kFloat32;
constexpr auto kF16 = DType::kFloat16;
constexpr double kNorm = 1e-4;        // A float32 sum of one chunk.
constexpr double kTarget = 1 / 1.25;  // 1.25 times the bound by the bytes.
constexpr double kPathMicroseconds = 400;

template <typename T>
T* As(std::byte* memory) {
  return reinterpret_cast<T*>(memory);
}

enum Buffer : std::uint8_t {
  kSlots,
  kGrads,
  kResidual,
  kPacked,
  kNorms,
  kAlways,
  kNextSlots,
  kSelected,
  kWorkspace,
  kNonfinite
};

int Before(const ChunkPool& pool, const KernelTables& tables, const Memory& m,
           void* stream) {
  kernels::ChunkResidualArgs args{};
  args.range = pool.All();
  args.slots = As<std::uint32_t>(m[kSlots]);
  args.grads = m[kGrads];
  args.type = kF32;
  args.residual = As<float>(m[kResidual]);
  args.packed = m[kPacked];
  args.packed_type = kF16;
  args.scale = 1;
  args.keep_factor = 0.9F;
  args.norm_scale = 1;
  args.norms = As<float>(m[kNorms]);
  return tables.chunks.chunk_residual(args, stream);
}

int After(const ChunkPool& pool, const KernelTables& tables, const Memory& m,
          void* stream) {
  kernels::ChunkUnpackArgs unpack{};
  unpack.range = pool.All();
  unpack.slots = As<std::uint32_t>(m[kSlots]);
  unpack.grads = m[kGrads];
  unpack.type = kF32;
  unpack.packed = m[kPacked];
  unpack.packed_type = kF16;
  unpack.norm_scale = 1;
  unpack.norms = As<float>(m[kNorms]);
  unpack.nonfinite = As<std::uint32_t>(m[kNonfinite]);
  const int error = tables.chunks.chunk_unpack(unpack, stream);
  if (error != 0) return error;
  kernels::TopKArgs top_k{};
  top_k.norms = As<float>(m[kNorms]);
  top_k.always = As<std::uint8_t>(m[kAlways]);
  top_k.chunks = pool.chunks();
  top_k.k = pool.sent_chunks();
  top_k.slots = As<std::uint32_t>(m[kNextSlots]);
  top_k.selected = As<std::uint8_t>(m[kSelected]);
  top_k.workspace = m[kWorkspace];
  top_k.nonfinite = As<std::uint32_t>(m[kNonfinite]);
  return tables.chunks.top_k(top_k, stream);
}

// The same slots in every launch: the next ones are made, and not used.
KernelCase Path(const ChunkPool& pool, bool before, bool after) {
  KernelCase made;
  const std::size_t sent = pool.sent_elements();
  made.name = before && after ? "csc path"
              : before        ? "csc before the wire"
                              : "csc after the wire";
  // Of the whole alone: after the wire there are few bytes, and it is mostly
  // launches that take the time.
  made.target = before && after ? kTarget : 0;
  if (before && after) made.most_us = kPathMicroseconds;
  // Gradients and residuals are read, residuals written; what is sent is
  // written packed. Then that is read, and written to the gradients.
  if (before) {
    made.bytes += static_cast<double>(pool.elements * 3 * sizeof(float) +
                                      sent * SizeOf(kF16));
  }
  if (after) {
    made.bytes += static_cast<double>(sent * (SizeOf(kF16) + sizeof(float)));
  }
  const std::size_t chunks = pool.chunks();
  made.Add(pool.Slots());
  made.AddNormal(kF32, pool.elements);
  made.AddNormal(kF32, pool.elements);
  made.AddNormal(kF16, sent);
  made.AddZeros(chunks * sizeof(float));
  made.buffers.back().tolerance = kNorm;
  made.AddZeros(chunks);
  for (const std::size_t bytes : {chunks * sizeof(std::uint32_t), chunks,
                                  kernels::TopKWorkspaceBytes(chunks)}) {
    made.AddZeros(bytes);
    // Norms that are almost the same may change places.
    made.buffers.back().checked = false;
  }
  made.AddZeros(sizeof(std::uint32_t));
  made.launch = [=](const KernelTables& tables, const Memory& m, void* stream) {
    const int error = before ? Before(pool, tables, m, stream) : 0;
    return error == 0 && after ? After(pool, tables, m, stream) : error;
  };
  return made;
}

}  // namespace

std::vector<MakeCase> CscPathCases(std::size_t n) {
  ChunkPool pool;
  pool.elements = n;
  return {[=] { return Path(pool, true, false); },
          [=] { return Path(pool, false, true); },
          [=] { return Path(pool, true, true); }};
}

}  // namespace gradientflow::benchmarks
