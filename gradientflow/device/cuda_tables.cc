#include "gradientflow/device/cuda_tables.h"

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <utility>

#include "gradientflow/device/cuda_context.h"
#include "gradientflow/device/cuda_device.h"
#include "gradientflow/device/cuda_status.h"
#include "kernels/cuda/cuda_kernels.h"

namespace gradientflow {
namespace {

using kernels::ChunkKernelTable;
using kernels::KernelTable;

// A function in a table knows only its arguments, so each device has functions
// of its own.
template <int kIndex, class Kernel, class Args>
int Launch(Kernel kernel, const Args& args, void* stream) {
  const CurrentContext current(*CudaContext::Find(kIndex));
  if (current.error() != cudaSuccess) return current.error();
  const int error = kernel(args, stream);
  // The return value reports the error. The caller's own CUDA code must not see
  // it, too.
  (void)Succeeded(static_cast<cudaError_t>(error));
  return error;
}

template <int kIndex, auto kMember, class Args>
int Run(const Args& args, void* stream) {
  return Launch<kIndex>(kernels::CudaKernels()->*kMember, args, stream);
}
template <int kIndex, auto kMember, class Args>
int RunChunks(const Args& args, void* stream) {
  return Launch<kIndex>(kernels::CudaChunkKernels()->*kMember, args, stream);
}

struct Tables {
  KernelTable elements;
  ChunkKernelTable chunks;
};

template <int kIndex>
constexpr Tables TablesOf() {
  using Element = KernelTable;
  using Chunk = ChunkKernelTable;
  return {
      {
          "cuda",
          &Run<kIndex, &Element::convert>,
          &Run<kIndex, &Element::reduce_many>,
          &Run<kIndex, &Element::find_nonfinite>,
      },
      {
          "cuda",
          &RunChunks<kIndex, &Chunk::chunk_residual>,
          &RunChunks<kIndex, &Chunk::chunk_unpack>,
          &RunChunks<kIndex, &Chunk::chunk_restore>,
          &RunChunks<kIndex, &Chunk::chunk_rescale>,
          &RunChunks<kIndex, &Chunk::top_k>,
          &RunChunks<kIndex, &Chunk::tile_squares>,
          &RunChunks<kIndex, &Chunk::lars_rates>,
          &RunChunks<kIndex, &Chunk::tile_sgd>,
      },
  };
}

template <std::size_t... kIndex>
constexpr std::array<Tables, sizeof...(kIndex)> AllTables(
    std::index_sequence<kIndex...>) {
  return {TablesOf<static_cast<int>(kIndex)>()...};
}

constexpr std::array<Tables, kMaxCudaDevices> kTables =
    AllTables(std::make_index_sequence<kMaxCudaDevices>());

}  // namespace

const KernelTable& CudaTable(int index) { return kTables[index].elements; }
const ChunkKernelTable& CudaChunkTable(int index) {
  return kTables[index].chunks;
}

}  // namespace gradientflow
