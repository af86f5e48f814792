#include "kernels/cuda/cuda_kernels.h"
#include "tests/device/fake_cudart_world.h"
#include "tests/device/kernel_tables.h"

// The CUDA kernels of the fake runtime are the fake device's, on its streams.
namespace gradientflow::kernels {
namespace {

using testing::CurrentDevice;
using testing::FakeCudaStream;
using testing::Said;

template <auto kMember, class Table, class Args>
int Launch(const Table& table, const Args& args, void* stream) {
  if (const cudaError_t error = testing::Enter("launch")) return Said(error);
  const FakeCudaStream* own = testing::Of(static_cast<cudaStream_t>(stream));
  if (own->device != CurrentDevice()) {
    return Said(cudaErrorInvalidResourceHandle);
  }
  if (!testing::IsLoaded(CurrentDevice())) return Said(cudaErrorNotReady);
  return (table.*kMember)(args, own->stream->native());
}

struct Runner {
  template <auto kMember, class Args>
  static int Run(const Args& args, void* stream) {
    return Launch<kMember>(testing::FakeCudart::device(0).kernels(), args,
                           stream);
  }
  template <auto kMember, class Args>
  static int RunChunks(const Args& args, void* stream) {
    return Launch<kMember>(testing::FakeCudart::device(0).chunk_kernels(), args,
                           stream);
  }
};

constexpr KernelTable kTable = testing::KernelsThrough<Runner>("cuda");
constexpr ChunkKernelTable kChunkTable =
    testing::ChunkKernelsThrough<Runner>("cuda");

}  // namespace

const KernelTable* CudaKernels() { return &kTable; }
const ChunkKernelTable* CudaChunkKernels() { return &kChunkTable; }

LoadResult LoadKernels() {
  constexpr const char* kCall = "cudaFuncGetAttributes";
  if (const cudaError_t error = testing::Enter(kCall)) {
    return {Said(error), kCall};
  }
  testing::FakeCudaWorld& world = testing::TheWorld();
  const MutexLock lock(world.mutex);
  world.loaded.insert(CurrentDevice());
  return {0, kCall};
}

}  // namespace gradientflow::kernels
