#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack.cuh"

// The loop of the kernels that work element by element.
//
// How they keep the memory busy: bandwidth times latency is the amount that
// must be in flight. On an H200 that is some 4.8 TB/s * 700 ns, or 26 KB for
// each of its 132 multiprocessors and, with margin, 40 KB. Each kernel issues
// all loads of kUnroll packs before it uses the first. With at most 64
// registers, 1024 threads or more fit; with 48 to 128 bytes each, 48 KB or more
// are in flight. The kernels' files say how many bytes they have. The grid is
// about four times what fits at once, so that a fast multiprocessor takes more
// of the work and the last round is short.
namespace gradientflow::kernels::cuda {

inline constexpr unsigned kThreads = 256;
// Blocks that fit one multiprocessor, with 64 registers per thread.
inline constexpr int kSpanResidentBlocks = 4;
// Blocks of a grid for each multiprocessor.
inline constexpr int kSpanBlocks = 32;
// Single elements at once, if the alignment of the pointers allows no packs.
inline constexpr int kSingleUnroll = 8;

// [0, n) as `head` single elements, then whole aligned packs, then less than a
// pack.
struct Span {
  std::size_t head;
  std::size_t packs;
  std::size_t n;
};

// Finds out whether one shift aligns all pointers to whole packs of kN of their
// own elements, and which.
template <int kN>
class Heads {
 public:
  template <typename T>
  void Add(const T* pointer) {
    AddElements(reinterpret_cast<std::uintptr_t>(pointer) / sizeof(T));
  }

  bool together() const { return together_; }
  std::size_t head() const { return head_; }

 private:
  void AddElements(std::uintptr_t elements) {
    const std::size_t head = (kN - elements % kN) % kN;
    together_ = together_ && (first_ || head == head_);
    first_ = false;
    head_ = head;
  }

  bool first_ = true;
  bool together_ = true;
  std::size_t head_ = 0;
};

// The distance between the packs that a thread works on at once.
template <int kN>
inline constexpr std::size_t kStep = std::size_t{kThreads} * kN;

// The state of a thread that watches for infinities and NaNs.
struct Watch {
  bool seen = false;
};

// A store and not an `or`, since *nonfinite becomes 1 whatever it was. Every
// warp that saw one stores, once, at its end.
__device__ inline void Report(const Watch& watch, std::uint32_t* nonfinite) {
  const bool seen = __ballot_sync(kAllLanes, watch.seen) != 0;
  if (seen && nonfinite != nullptr && threadIdx.x % kWarp == 0) {
    atomicExch(nonfinite, 1U);
  }
}

// Body has a State; Run<kN, kUnroll>(i, state), which works on the elements [i
// + u * kStep<kN>, ... + kN) for u < kUnroll; and Finish(state), which all
// threads call at the end.
template <class Body, int kN, int kUnroll>
__global__ void __launch_bounds__(kThreads, kSpanResidentBlocks)
    RunSpan(const __grid_constant__ Body body, const Span span) {
  constexpr std::size_t kTile = std::size_t{kThreads} * kUnroll;
  typename Body::State state{};
  for (std::size_t first = blockIdx.x * kTile; first < span.packs;
       first += gridDim.x * kTile) {
    std::size_t pack = first + threadIdx.x;
    if (first + kTile <= span.packs) {
      body.template Run<kN, kUnroll>(span.head + pack * kN, state);
    } else {
      for (; pack < span.packs; pack += kThreads) {
        body.template Run<kN, 1>(span.head + pack * kN, state);
      }
    }
  }
  if constexpr (kN > 1) {
    const std::size_t tail = span.head + span.packs * kN;
    const std::size_t edge = blockIdx.x * std::size_t{kThreads} + threadIdx.x;
    if (edge < span.head) {
      body.template Run<1, 1>(edge, state);
    } else if (edge - span.head < span.n - tail) {
      body.template Run<1, 1>(tail + (edge - span.head), state);
    }
  }
  body.Finish(state);
}

// Runs `body` over [0, n) in packs, of which the first begins at `head`.
template <int kN, int kUnroll, class Body>
int LaunchPacks(const Body& body, std::size_t head, std::size_t n,
                void* stream) {
  if (n == 0) return 0;
  Span span{std::min(n, head), 0, n};
  span.packs = (n - span.head) / kN;
  Shape shape;
  shape.threads = kThreads;
  shape.blocks =
      BlocksFor(span.packs, std::size_t{kThreads} * kUnroll, kSpanBlocks);
  return Launch<&RunSpan<Body, kN, kUnroll>>(shape, stream, body, span);
}

// The same for a body whose pointers are all in `heads`: in packs if they allow
// it, else element by element.
template <int kN, int kUnroll, class Body>
int LaunchSpan(const Body& body, const Heads<kN>& heads, std::size_t n,
               void* stream) {
  if (heads.together()) {
    return LaunchPacks<kN, kUnroll>(body, heads.head(), n, stream);
  }
  return LaunchPacks<1, kSingleUnroll>(body, 0, n, stream);
}

}  // namespace gradientflow::kernels::cuda
