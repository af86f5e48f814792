#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "kernels/kernels.h"

// Measures kernels as bytes read plus bytes written per second, next to a
// memcpy of the same size in the same loop.
namespace gradientflow::kernels::bench {

// Memory of its own pages, touched, and filled with small finite numbers.
class Buffer {
 public:
  Buffer(DType type, std::size_t elements);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

// What is timed: `run` works on `elements` elements and moves `moved_bytes`
// bytes, those read and those written together. `check` is called once before
// the timing and says whether the result is right.
struct Job {
  std::size_t moved_bytes;
  std::function<void()> run;
  std::function<bool()> check;
};

// Runs the job and a memcpy of `memcpy_bytes` in turns. The benchmark's time
// is the job's; counter vs_memcpy is the ratio of the two medians, in bytes
// per second.
void AgainstMemcpy(benchmark::State& state, const Job& job,
                   std::size_t memcpy_bytes);

// The sizes every kernel is measured at, in bytes of its widest buffer:
// a segment of the pipeline, in cache, and more than the caches keep.
inline constexpr std::size_t kSegmentBytes = 256 << 10;
inline constexpr std::size_t kStreamBytes = 64 << 20;

using MakeBench = std::function<void(benchmark::State&, const KernelTable&,
                                     std::size_t bytes)>;

// Registers `bench` as "<name>/<table>/<bytes>" for every vector table this
// CPU has and both sizes.
void Register(const std::string& name, const MakeBench& bench);

// Short names for the benchmarks' names: "f32", "f16", "bf16".
const char* ShortName(DType type);

}  // namespace gradientflow::kernels::bench
