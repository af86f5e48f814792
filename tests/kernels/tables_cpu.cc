#include <cstddef>
#include <new>
#include <vector>

#include "kernels/kernels.h"
#include "tests/kernels/backend.h"
#include "tests/kernels/oracle.h"

namespace gradientflow::kernels::testing {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

std::vector<const KernelTable*> Tables() {
  std::vector<const KernelTable*> tables;
  for (const CpuKernelTable* table : CpuTables()) tables.push_back(table);
  return tables;
}

void* AllocateTestMemory(std::size_t bytes) {
  return ::operator new(bytes, kAlignment);
}

void FreeTestMemory(void* memory, std::size_t /*bytes*/) {
  ::operator delete(memory, kAlignment);
}

// Calls on a CPU are done when they return.
void BeforeLaunch() {}
void AfterLaunch() {}

}  // namespace gradientflow::kernels::testing
