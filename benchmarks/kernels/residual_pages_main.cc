#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <vector>

#include "gradientflow/base/pages.h"
#include "kernels/kernels.h"

// The pass over a residual of 61 M elements (AlexNet's), with the residual in
// pages as the heap gives them and in huge ones, in turns; processor time:
//   bazel run -c opt //benchmarks/kernels:residual_pages [ELEMENTS [ROUNDS]]
namespace gradientflow {
namespace {

constexpr std::size_t kChunk = 32000;

double PassMs(float* grads, float* residual, std::size_t elements) {
  const std::clock_t begin = std::clock();
  for (std::size_t at = 0; at < elements; at += kChunk) {
    float norm = 0;
    kernels::CpuKernels().residual(
        {grads + at, kernels::DType::kFloat32, residual + at,
         std::min(kChunk, elements - at), false, false, 0.9F, &norm},
        nullptr);
  }
  return 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Main(int argc, char** argv) {
  const std::size_t elements =
      argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 61000000;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 41;
  const auto grads = NewPages<float>(elements);
  const auto huge = NewPages<float>(elements);
  const std::unique_ptr<float[]> heap(new float[elements]());
  if (grads == nullptr || huge == nullptr) return 1;
  std::vector<double> in_heap;
  std::vector<double> in_huge;
  for (int round = -1; round < rounds; ++round) {
    std::fill_n(grads.get(), elements, 1e-3F);
    const double heap_ms = PassMs(grads.get(), heap.get(), elements);
    const double huge_ms = PassMs(grads.get(), huge.get(), elements);
    if (round < 0) continue;  // Pages appear.
    in_heap.push_back(heap_ms);
    in_huge.push_back(huge_ms);
  }
  std::printf(
      "%zu elements, median (fastest) of %d passes: heap %.2f (%.2f) "
      "ms, huge pages %.2f (%.2f) ms\n",
      elements, rounds, Median(in_heap),
      *std::min_element(in_heap.begin(), in_heap.end()), Median(in_huge),
      *std::min_element(in_huge.begin(), in_huge.end()));
  return 0;
}

}  // namespace
}  // namespace gradientflow

int main(int argc, char** argv) { return gradientflow::Main(argc, argv); }
