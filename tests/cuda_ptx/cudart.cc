#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <string>

#include "tests/cuda_ptx/machine.h"
#include "tests/cuda_ptx/memory.h"

// CUDA's runtime under its own names, as far as the host code that nvcc made of
// kernels/cuda calls it. That code marshals the arguments and knows the shapes
// of launches; what it launches, the Machine runs.
namespace gradientflow::cuda_ptx {
namespace {

// Plain ones, by the address that stands for a kernel on the host.
std::map<const void*, std::string>& KernelNames() {
  static auto* const names = new std::map<const void*, std::string>;
  return *names;
}

}  // namespace
}  // namespace gradientflow::cuda_ptx

using gradientflow::cuda_ptx::DeviceMemory;
using gradientflow::cuda_ptx::KernelNames;
using gradientflow::cuda_ptx::Machine;
using gradientflow::cuda_ptx::PlainName;
using gradientflow::cuda_ptx::Shape;

// NOLINTBEGIN(bugprone-reserved-identifier): so nvcc calls them.
extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int,
                       int) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* device,
                            int, uint3*, uint3*, dim3*, dim3*, int*) {
  KernelNames()[host] = PlainName(device);
}

// Kernels are launched by cudaLaunchKernelEx() only, not by <<<...>>>.
unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, void*) {
  return 1;
}
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*) {
  return cudaErrorNotSupported;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t,
                               cudaStream_t) {
  return cudaErrorNotSupported;
}
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) {
  return cudaErrorNotSupported;
}
}
// NOLINTEND(bugprone-reserved-identifier)

cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, std::size_t,
                             cudaStream_t) {
  return cudaErrorNotSupported;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config,
                                const void* host, void** arguments) {
  const dim3& grid = config->gridDim;
  const dim3& block = config->blockDim;
  const auto kernel = KernelNames().find(host);
  if (kernel == KernelNames().end()) return cudaErrorInvalidDeviceFunction;
  if (grid.y != 1 || grid.z != 1 || block.y != 1 || block.z != 1 ||
      config->numAttrs != 0) {
    return cudaErrorNotSupported;
  }
  const Shape shape = {grid.x, block.x, config->dynamicSmemBytes};
  const gradientflow::Status status =
      Machine::Get().Launch(kernel->second, shape, arguments);
  return status.ok() ? cudaSuccess : cudaErrorLaunchFailure;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* host) {
  return KernelNames().count(host) != 0 ? cudaSuccess
                                        : cudaErrorInvalidDeviceFunction;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

// Few, so that grids have fewer blocks than there is work.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute != cudaDevAttrMultiProcessorCount) return cudaErrorInvalidValue;
  *value = 2;
  return cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
  static char made;
  *pool = reinterpret_cast<cudaMemPool_t>(&made);
  return cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t) { return cudaSuccess; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return cudaSuccess;
}
cudaError_t cudaMallocFromPoolAsync(void** memory, std::size_t bytes,
                                    cudaMemPool_t, cudaStream_t) {
  *memory = DeviceMemory::Get().Allocate(bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t) {
  DeviceMemory::Get().Free(memory);
  return cudaSuccess;
}
