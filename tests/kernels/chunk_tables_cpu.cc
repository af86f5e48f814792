#include <vector>

#include "kernels/chunk_kernels.h"
#include "tests/kernels/chunk_oracle.h"

namespace gradientflow::kernels::testing {

std::vector<const ChunkKernelTable*> ChunkTables() {
  return {&CpuChunkKernels()};
}

}  // namespace gradientflow::kernels::testing
