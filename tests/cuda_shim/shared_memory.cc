#include <cstring>

#include "tests/cuda_shim/block.h"
#include "tests/cuda_shim/sanitizers.h"

// Dynamic shared memory. The part that a block may use is filled with NaNs
// before the block runs. The bytes beyond it are NaNs too, for kernels that
// read them, with a pattern that no kernel writes by chance.
namespace gradientflow::kernels::cuda {

// The name and namespace by which kernels know it (launch.cuh).
constexpr std::size_t kBeyond = 4096;
__thread __attribute__((aligned(
    16))) unsigned char gf_shared_memory[cuda_shim::kMostShared + kBeyond];

}  // namespace gradientflow::kernels::cuda

namespace gradientflow::cuda_shim {
namespace {

constexpr int kPoison = 0xFF;
constexpr std::size_t kTotal = sizeof(kernels::cuda::gf_shared_memory);

unsigned char Canary(std::size_t at) { return at % 2 == 0 ? 0xFB : 0xFF; }

// The canary's bytes, to compare with.
struct Canaries {
  Canaries() {
    for (std::size_t i = 0; i < kTotal; ++i) bytes[i] = Canary(i);
  }
  unsigned char bytes[kTotal];
};

const unsigned char* AllCanaries() {
  static const auto* const all = new Canaries;
  return all->bytes;
}

}  // namespace

void BlockRunner::PoisonShared() {
  unsigned char* shared = kernels::cuda::gf_shared_memory;
  const std::size_t bytes = launch_->shared_bytes;
  Allow(shared, kTotal);
  std::memset(shared, kPoison, bytes);
  std::memcpy(shared + bytes, AllCanaries() + bytes, kTotal - bytes);
  Forbid(shared + bytes, kTotal - bytes);
}

void BlockRunner::CheckShared() {
  const unsigned char* shared = kernels::cuda::gf_shared_memory;
  Allow(shared, kTotal);
  const unsigned char* expected = AllCanaries();
  const std::size_t bytes = launch_->shared_bytes;
  if (std::memcmp(shared + bytes, expected + bytes, kTotal - bytes) == 0) {
    return;
  }
  std::size_t at = bytes;
  while (shared[at] == expected[at]) ++at;
  Fail("wrote byte %zu of %zu bytes of dynamic shared memory", at, bytes);
}

}  // namespace gradientflow::cuda_shim
