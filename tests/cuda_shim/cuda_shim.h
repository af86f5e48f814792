#pragma once

#include <cstddef>
#include <cstdint>

// What tests may set and ask of the CUDA that runs on the CPU; README.md says
// what it is. Of the whole process, and thread-safe.
namespace gradientflow::cuda_shim {

// The orders in which blocks and threads run follow from this and the number
// of launches since.
void SetSeed(std::uint64_t seed);

// What cudaDevAttrMultiProcessorCount says: 2 until it is set, so that loops
// with a stride of the grid do loop.
void SetMultiprocessors(int count);

// Kernels launched so far.
std::uint64_t Launches();

// From now, a launch of a kernel that cudaFuncGetAttributes() was not called
// for aborts: a GPU would load it then, and might wait for what runs there.
void RequireLoaded();

// Memory as cudaMallocManaged gives: for kernels and the host. A multiple of
// 64, and all zeros. Aborts when there is none.
void* AllocateManaged(std::size_t bytes);
void FreeManaged(void* memory);

// While false, the host that touches managed memory ends in SIGSEGV: so tests
// see host code that looks at what kernels have yet to write.
void LetHostTouchManaged(bool may);

}  // namespace gradientflow::cuda_shim
