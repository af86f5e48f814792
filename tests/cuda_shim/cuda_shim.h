#pragma once

#include <cstddef>
#include <cstdint>

// What tests may set and ask of the CUDA that runs on the CPU; see README.md.
// It applies to the whole process, and is thread-safe.
namespace gradientflow::cuda_shim {

// The seed and the number of launches since determine the orders in which
// blocks and threads run.
void SetSeed(std::uint64_t seed);

// Sets the result of cudaDevAttrMultiProcessorCount. It is 2 at first, so that
// loops with the stride of the grid do loop.
void SetMultiprocessors(int count);

// Kernels launched so far.
std::uint64_t Launches();

// From here on, the launch of a kernel aborts if cudaFuncGetAttributes() was
// not called for it: a GPU would load it then, and might wait for running work.
void RequireLoaded();

// Memory like cudaMallocManaged's, for kernels and the host. Its address is a
// multiple of 64, and it is zeroed. Aborts if there is none.
void* AllocateManaged(std::size_t bytes);
void FreeManaged(void* memory);

// While false, a host that touches managed memory gets SIGSEGV. So tests detect
// host code that reads what kernels have yet to write.
void LetHostTouchManaged(bool may);

}  // namespace gradientflow::cuda_shim
