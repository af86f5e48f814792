#include <algorithm>
#include <initializer_list>

#include "benchmarks/kernels/kernel_case.h"

// The cases of chunk_kernels.h, except the optimiser's, which are in
// tile_cases.cc. All work on a pool that is cut into chunks, of which some are
// sent:
//
//   gradients, residual --residual--> residual, packed, norms of kept chunks
//   packed --unpack--> gradients, norms of sent chunks --top-k--> next slots
//
// That is what gradientflow/csc does to a pool in one step, without the wire.
namespace gradientflow::benchmarks {
namespace {

constexpr double kNorm = 1e-4;            // A float32 sum of one chunk.
constexpr double kPathTarget = 1 / 1.25;  // 1.25 times the bytes' time.
constexpr double kPathMicroseconds = 400;
constexpr std::size_t kTopKChunks = 4000;
constexpr double kTopKMicroseconds = 20;

constexpr std::size_t kChunkElements = 32000;

// A pool whose sent chunks are spread evenly.
struct ChunkPool {
  explicit ChunkPool(std::size_t n, double sent_share = 0.15) : elements(n) {
    // Chunk c is sent if the share of all chunks before it passes a whole
    // number.
    const auto before = [=](std::size_t c) {
      return static_cast<std::uint32_t>(static_cast<double>(c) * sent_share);
    };
    for (std::size_t c = 0; c * kChunkElements < n; ++c) {
      const bool sent = before(c + 1) > before(c);
      slots.push_back(sent ? before(c) : kernels::kNotSent);
      if (!sent) continue;
      ++sent_chunks;
      sent_elements += std::min(kChunkElements, n - c * kChunkElements);
    }
  }
  kernels::ChunkRange All() const {
    return {elements, kChunkElements, 0, slots.size()};
  }

  std::size_t elements = 0;
  std::vector<std::uint32_t> slots;  // By chunk.
  std::size_t sent_chunks = 0;
  std::size_t sent_elements = 0;
};

// The buffers of Path(), in order.
constexpr std::size_t kSlots = 0, kGrads = 1, kResidual = 2, kPacked = 3,
                      kNorms = 4, kNonfinite = 5, kAlways = 6, kNextSlots = 7,
                      kSelected = 8, kWorkspace = 9;

// Which of the steps above a case does.
struct Steps {
  bool residual = false;
  bool unpack = false;
  bool top_k = false;
};

int DoResidual(const ChunkPool& pool, DType type, const Site& s) {
  return s.tables.chunks.chunk_residual(
      {pool.All(), s.as<std::uint32_t>(kSlots), s.m[kGrads], type,
       s.as<float>(kResidual), s.m[kPacked], kF16, 0, 1, false, 0.9F, 1,
       s.as<float>(kNorms)},
      s.stream);
}

int DoUnpack(const ChunkPool& pool, DType type, const Site& s) {
  return s.tables.chunks.chunk_unpack(
      {pool.All(), s.as<std::uint32_t>(kSlots), s.m[kGrads], type, s.m[kPacked],
       kF16, 0, 1, s.as<float>(kNorms), s.as<std::uint32_t>(kNonfinite)},
      s.stream);
}

int DoTopK(const ChunkPool& pool, const Site& s) {
  return s.tables.chunks.top_k(
      {s.as<float>(kNorms), s.as<std::uint8_t>(kAlways), pool.slots.size(),
       pool.sent_chunks, s.as<std::uint32_t>(kNextSlots),
       s.as<std::uint8_t>(kSelected), s.m[kWorkspace],
       s.as<std::uint32_t>(kNonfinite)},
      s.stream);
}

// All launches use the same slots: the next ones are computed, but not used.
KernelCase Path(const std::string& name, const ChunkPool& pool, DType type,
                Steps steps) {
  const std::size_t sent = pool.sent_elements;
  const std::size_t chunks = pool.slots.size();
  const bool moves = steps.residual || steps.unpack;
  const auto if_moves = [&](std::size_t n) { return moves ? n : 0; };
  const auto if_alone = [&](std::size_t bytes) {
    // If the path computes norms, chunks with almost equal ones may swap
    // places.
    return moves ? Scratch(bytes) : Zeros(bytes);
  };
  KernelCase made;
  made.name = name;
  // Gradients and residuals are read, and residuals written; what is sent is
  // also written packed. After the wire that is read, and written to the
  // gradients.
  if (steps.residual) {
    made.bytes +=
        static_cast<double>(pool.elements * (SizeOf(type) + 2 * sizeof(float)) +
                            sent * SizeOf(kF16));
  }
  if (steps.unpack) {
    made.bytes += static_cast<double>(sent * (SizeOf(kF16) + SizeOf(type)));
  }
  made.buffers = {
      Values(pool.slots),
      Normal(type, if_moves(pool.elements), 1),
      Normal(kF32, steps.residual ? pool.elements : 0, 2),
      Normal(kF16, if_moves(sent), 3),
      moves ? Sums(kF32, chunks, kNorm) : Normal(kF32, chunks, 4),
      Zeros(sizeof(std::uint32_t)),
      Zeros(chunks),
      if_alone(chunks * sizeof(std::uint32_t)),
      if_alone(chunks),
      Scratch(kernels::TopKWorkspaceBytes(chunks)),
  };
  made.launch = [=](const Site& s) {
    int error = 0;
    if (steps.residual) error = DoResidual(pool, type, s);
    if (error == 0 && steps.unpack) {
      error = DoUnpack(pool, type, s);
    }
    if (error == 0 && steps.top_k) error = DoTopK(pool, s);
    return error;
  };
  return made;
}

KernelCase ChunkRestore(const ChunkPool& pool) {
  // Residuals are read; those of kept chunks are written only where they are
  // not finite, those of sent ones after their gradients have been read, too.
  return {"chunk_restore f32",
          static_cast<double>((pool.elements + 2 * pool.sent_elements) *
                              sizeof(float)),
          {Values(pool.slots), Normal(kF32, pool.elements, 1),
           Normal(kF32, pool.elements, 2)},
          [=](const Site& s) {
            return s.tables.chunks.chunk_restore(
                {pool.All(), s.as<std::uint32_t>(0), s.m[1], kF32,
                 s.as<float>(2), 0.5F},
                s.stream);
          }};
}

KernelCase ChunkRescale(const ChunkPool& pool) {
  return {"chunk_rescale",
          static_cast<double>(pool.elements * 2 * sizeof(float)),
          {Normal(kF32, pool.elements, 1)},
          [=](const Site& s) {
            return s.tables.chunks.chunk_rescale(
                {pool.All(), s.as<float>(0), 0.9999F}, s.stream);
          }};
}

KernelCase TopK() {
  KernelCase made =
      Path("top_k 600 of 4000", ChunkPool(kTopKChunks * kChunkElements), kF32,
           {.top_k = true});
  made.most_us = kTopKMicroseconds;
  return made;
}

}  // namespace

KernelCases ChunkCases(std::size_t n) {
  const ChunkPool some(n);
  const ChunkPool all(n, 1);
  KernelCases made;
  for (const DType type : {kF32, kF16}) {
    made.push_back(Path("chunk_residual " + ShortName(type) + ">f16", some,
                        type, {.residual = true}));
    made.push_back(Path("chunk_unpack f16>" + ShortName(type), all, type,
                        {.unpack = true}));
  }
  made.insert(made.end(), {ChunkRestore(some), ChunkRescale(some), TopK()});
  return made;
}

KernelCases CscCases(std::size_t n) {
  const ChunkPool pool(n);
  KernelCase before =
      Path("csc before the wire", pool, kF32, {.residual = true});
  KernelCase after =
      Path("csc after the wire", pool, kF32, {.unpack = true, .top_k = true});
  // Only the whole has a target: after the wire there are few bytes, and
  // launches take most of the time.
  before.target = after.target = 0;
  KernelCase whole = Path("csc path", pool, kF32, {true, true, true});
  whole.target = kPathTarget;
  whole.most_us = kPathMicroseconds;
  return {before, after, whole, TopK()};
}

}  // namespace gradientflow::benchmarks
