#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/chunk_kernels.h"
#include "kernels/kernels.h"

// The memory that a kernel is given, field by field: Visit(args, see) calls
// see("field", pointer, bytes) for the bytes that are certainly touched. If the
// Args do not tell the length of a field, that is its first element. Fields
// that may be null, and are, are left out.
namespace gradientflow::testing {

template <class See, class T>
void IfGiven(const See& see, const char* field, const T* pointer,
             std::size_t count = 1) {
  if (pointer != nullptr) see(field, pointer, count * sizeof(T));
}

template <class See>
void Visit(const kernels::ConvertArgs& args, const See& see) {
  see("src", args.src, args.n * SizeOf(args.src_type));
  see("dst", args.dst, args.n * SizeOf(args.dst_type));
  if (args.settled != nullptr) {
    see("settled", args.settled, args.n * SizeOf(args.src_type));
  }
  IfGiven(see, "nonfinite", args.nonfinite);
}

template <class See>
void Visit(const kernels::ReduceManyArgs& args, const See& see) {
  for (int s = 0; s < args.sources; ++s) {
    const auto type = s == args.own ? args.dst_type : args.src_type;
    see("srcs[]", args.srcs[s], args.n * SizeOf(type));
  }
  for (int d = 0; d < args.dests; ++d) {
    see("dsts[]", args.dsts[d], args.n * SizeOf(args.dst_type));
  }
  IfGiven(see, "nonfinite", args.nonfinite);
}

template <class See>
void Visit(const kernels::FindNonfiniteArgs& args, const See& see) {
  see("src", args.src, args.n * SizeOf(args.type));
  see("nonfinite", args.nonfinite, sizeof(*args.nonfinite));
}

// For a range of chunks: `pointer` is to elements of `size` bytes, one for
// every element, or every chunk, of the pool. A null pointer is left out.
struct RangeOf {
  explicit RangeOf(const kernels::ChunkRange& range)
      : chunks{range.first, range.count},
        elements{range.first * range.chunk_elements,
                 std::min(range.elements,
                          (range.first + range.count) * range.chunk_elements)} {
    elements.count -= std::min(elements.first, elements.count);
  }
  struct Run {
    std::size_t first;
    std::size_t count;

    template <class See>
    void Tell(const See& see, const char* field, const void* pointer,
              std::size_t size) const {
      if (count == 0 || pointer == nullptr) return;
      see(field, static_cast<const std::byte*>(pointer) + first * size,
          count * size);
    }
  };
  Run chunks;
  Run elements;
};

template <class See>
void Visit(const kernels::ChunkResidualArgs& args, const See& see) {
  const RangeOf range(args.range);
  range.chunks.Tell(see, "slots", args.slots, sizeof(std::uint32_t));
  range.elements.Tell(see, "grads", args.grads, SizeOf(args.type));
  range.elements.Tell(see, "residual", args.residual, sizeof(float));
  range.chunks.Tell(see, "norms", args.norms, sizeof(float));
  if (args.packed != nullptr) see("packed", args.packed, 1);
}

template <class See>
void Visit(const kernels::ChunkUnpackArgs& args, const See& see) {
  const RangeOf range(args.range);
  range.chunks.Tell(see, "slots", args.slots, sizeof(std::uint32_t));
  range.elements.Tell(see, "grads", args.grads, SizeOf(args.type));
  range.chunks.Tell(see, "norms", args.norms, sizeof(float));
  if (args.packed != nullptr) see("packed", args.packed, 1);
  range.chunks.Tell(see, "marks", args.marks, SizeOf(args.packed_type));
  IfGiven(see, "nonfinite", args.nonfinite);
}

template <class See>
void Visit(const kernels::ChunkRestoreArgs& args, const See& see) {
  const RangeOf range(args.range);
  range.chunks.Tell(see, "slots", args.slots, sizeof(std::uint32_t));
  range.elements.Tell(see, "grads", args.grads, SizeOf(args.type));
  range.elements.Tell(see, "residual", args.residual, sizeof(float));
  IfGiven(see, "only_if", args.only_if);
  IfGiven(see, "hidden", args.hidden, args.hidden_count);
}

template <class See>
void Visit(const kernels::ChunkRescaleArgs& args, const See& see) {
  const RangeOf range(args.range);
  range.elements.Tell(see, "residual", args.residual, sizeof(float));
  range.elements.Tell(see, "grads", args.grads, SizeOf(args.type));
}

template <class See>
void Visit(const kernels::TopKArgs& args, const See& see) {
  see("norms", args.norms, args.chunks * sizeof(float));
  IfGiven(see, "always", args.always, args.chunks);
  see("slots", args.slots, args.chunks * sizeof(std::uint32_t));
  see("selected", args.selected, args.chunks);
  see("workspace", args.workspace, kernels::TopKWorkspaceBytes(args.chunks));
  IfGiven(see, "nonfinite", args.nonfinite);
}

template <class See>
void Visit(const kernels::TileSquaresArgs& args, const See& see) {
  see("tiles", args.tiles, args.count * sizeof(kernels::Tile));
  IfGiven(see, "slots", args.slots);
  IfGiven(see, "weights", args.weights);
  if (args.grads != nullptr) see("grads", args.grads, SizeOf(args.type));
  see("weight_squares", args.weight_squares, args.count * sizeof(double));
  see("gradient_squares", args.gradient_squares, args.count * sizeof(double));
}

template <class See>
void Visit(const kernels::LarsRatesArgs& args, const See& see) {
  see("first_tile", args.first_tile,
      (args.tensors + 1) * sizeof(std::uint64_t));
  IfGiven(see, "weight_squares", args.weight_squares);
  IfGiven(see, "gradient_squares", args.gradient_squares);
  IfGiven(see, "skip", args.skip, args.tensors);
  see("rates", args.rates, args.tensors * sizeof(float));
}

template <class See>
void Visit(const kernels::TileSgdArgs& args, const See& see) {
  see("tiles", args.tiles, args.count * sizeof(kernels::Tile));
  IfGiven(see, "slots", args.slots);
  IfGiven(see, "weights", args.weights);
  IfGiven(see, "momentum_buf", args.momentum_buf);
  if (args.grads != nullptr) see("grads", args.grads, SizeOf(args.type));
  IfGiven(see, "rates", args.rates);
  IfGiven(see, "skip", args.skip);
}

}  // namespace gradientflow::testing
