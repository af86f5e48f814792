#include <string>
#include <utility>

#include "benchmarks/gpu/chunk_pool.h"
#include "benchmarks/gpu/kernel_case.h"

// The cases of chunk_kernels.h but for the optimiser's, which are in
// tile_cases.cc.
namespace gradientflow::benchmarks {
namespace {

using Memory = KernelCase::Memory;

constexpr auto kF32 = DType::kFloat32;
constexpr auto kF16 = DType::kFloat16;
constexpr double kNorm = 1e-4;  // A float32 sum of one chunk.
constexpr std::size_t kTopKChunks = 4000;
constexpr std::size_t kTopK = 600;
constexpr double kTopKMicroseconds = 20;

template <typename T>
T* As(std::byte* memory) {
  return reinterpret_cast<T*>(memory);
}

std::string Short(DType type) { return type == kF16 ? "f16" : "f32"; }

double Sum(std::initializer_list<std::size_t> bytes) {
  double sum = 0;
  for (const std::size_t b : bytes) sum += static_cast<double>(b);
  return sum;
}

void AddNorms(const ChunkPool& pool, KernelCase* made) {
  made->AddZeros(pool.chunks() * sizeof(float));
  made->buffers.back().tolerance = kNorm;
}

KernelCase ChunkResidual(const ChunkPool& pool, DType type) {
  KernelCase made;
  const std::size_t sent = pool.sent_elements();
  made.name = "chunk_residual " + Short(type) + ">f16";
  made.bytes = Sum({pool.elements * (SizeOf(type) + 2 * sizeof(float)),
                    sent * SizeOf(kF16)});
  made.Add(pool.Slots());
  made.AddNormal(type, pool.elements);
  made.AddNormal(kF32, pool.elements);
  made.AddZeros(sent * SizeOf(kF16));
  AddNorms(pool, &made);
  made.launch = [=](const KernelTables& tables, const Memory& m, void* stream) {
    kernels::ChunkResidualArgs args{};
    args.range = pool.All();
    args.slots = As<std::uint32_t>(m[0]);
    args.grads = m[1];
    args.type = type;
    args.residual = As<float>(m[2]);
    args.packed = m[3];
    args.packed_type = kF16;
    args.scale = 1;
    args.keep_factor = 0.9F;
    args.norm_scale = 1;
    args.norms = As<float>(m[4]);
    return tables.chunks.chunk_residual(args, stream);
  };
  return made;
}

KernelCase ChunkUnpack(const ChunkPool& pool, DType type) {
  KernelCase made;
  const std::size_t sent = pool.sent_elements();
  made.name = "chunk_unpack f16>" + Short(type);
  made.bytes = Sum({sent * (SizeOf(kF16) + SizeOf(type))});
  made.Add(pool.Slots());
  made.AddNormal(type, pool.elements);
  made.AddNormal(kF16, sent);
  AddNorms(pool, &made);
  made.AddZeros(sizeof(std::uint32_t));
  made.launch = [=](const KernelTables& tables, const Memory& m, void* stream) {
    kernels::ChunkUnpackArgs args{};
    args.range = pool.All();
    args.slots = As<std::uint32_t>(m[0]);
    args.grads = m[1];
    args.type = type;
    args.packed = m[2];
    args.packed_type = kF16;
    args.norm_scale = 1;
    args.norms = As<float>(m[3]);
    args.nonfinite = As<std::uint32_t>(m[4]);
    return tables.chunks.chunk_unpack(args, stream);
  };
  return made;
}

KernelCase ChunkRestore(const ChunkPool& pool) {
  KernelCase made;
  const std::size_t sent = pool.sent_elements();
  made.name = "chunk_restore f32";
  // What is kept is read, and written only where it is not finite.
  made.bytes =
      Sum({sent * 2 * sizeof(float), (pool.elements - sent) * sizeof(float)});
  made.Add(pool.Slots());
  made.AddNormal(kF32, pool.elements);
  made.AddNormal(kF32, pool.elements);
  made.launch = [=](const KernelTables& tables, const Memory& m, void* stream) {
    return tables.chunks.chunk_restore({pool.All(), As<std::uint32_t>(m[0]),
                                        m[1], kF32, As<float>(m[2]), 0.5F},
                                       stream);
  };
  return made;
}

KernelCase ChunkRescale(const ChunkPool& pool) {
  KernelCase made;
  made.name = "chunk_rescale";
  made.bytes = Sum({pool.elements * 2 * sizeof(float)});
  made.AddNormal(kF32, pool.elements);
  made.launch = [=](const KernelTables& tables, const Memory& m, void* stream) {
    return tables.chunks.chunk_rescale({pool.All(), As<float>(m[0]), 0.9999F},
                                       stream);
  };
  return made;
}

}  // namespace

KernelCase TopKCase() {
  KernelCase made;
  made.name = "top_k 600 of 4000";
  made.most_us = kTopKMicroseconds;
  made.AddNormal(kF32, kTopKChunks);
  made.AddZeros(kTopKChunks);
  made.AddZeros(kTopKChunks * sizeof(std::uint32_t));
  made.AddZeros(kTopKChunks);
  made.AddZeros(kernels::TopKWorkspaceBytes(kTopKChunks));
  made.buffers.back().checked = false;
  made.AddZeros(sizeof(std::uint32_t));
  made.launch = [=](const KernelTables& tables, const Memory& m, void* stream) {
    kernels::TopKArgs args{};
    args.norms = As<float>(m[0]);
    args.always = As<std::uint8_t>(m[1]);
    args.chunks = kTopKChunks;
    args.k = kTopK;
    args.slots = As<std::uint32_t>(m[2]);
    args.selected = As<std::uint8_t>(m[3]);
    args.workspace = m[4];
    args.nonfinite = As<std::uint32_t>(m[5]);
    return tables.chunks.top_k(args, stream);
  };
  return made;
}

std::vector<MakeCase> ChunkCases(std::size_t n) {
  ChunkPool some;
  some.elements = n;
  ChunkPool all = some;
  all.sent_share = 1;
  std::vector<MakeCase> made;
  for (const DType type : {kF32, kF16}) {
    made.push_back([=] { return ChunkResidual(some, type); });
    made.push_back([=] { return ChunkUnpack(all, type); });
  }
  made.push_back([=] { return ChunkRestore(some); });
  made.push_back([=] { return ChunkRescale(some); });
  made.emplace_back(&TopKCase);
  return made;
}

}  // namespace gradientflow::benchmarks
