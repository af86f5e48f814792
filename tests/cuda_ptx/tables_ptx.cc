#include <gtest/gtest.h>

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "kernels/chunk_kernels.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/kernels.h"
#include "tests/cuda_ptx/machine.h"
#include "tests/cuda_ptx/memory.h"
#include "tests/device/kernel_tables.h"
#include "tests/kernels/backend.h"
#include "tests/kernels/chunk_oracle.h"

// The backend of the suites: a table for each program of the library, whose
// calls go to the host code of the CUDA kernels. So each case runs once for
// every architecture whose code differs, and has its name.
namespace gradientflow::kernels::testing {
namespace {

using cuda_ptx::DeviceMemory;
using cuda_ptx::Library;
using cuda_ptx::Machine;

constexpr std::size_t kMostPrograms = 3;

template <std::size_t kProgram>
struct Runner {
  static void Choose() {
    Machine::Get().SetProgram(&Library::Get().programs()[kProgram]);
  }
  template <auto kMember, class Args>
  static int Run(const Args& args, void* stream) {
    Choose();
    return (CudaKernels()->*kMember)(args, stream);
  }
  template <auto kMember, class Args>
  static int RunChunks(const Args& args, void* stream) {
    Choose();
    return (CudaChunkKernels()->*kMember)(args, stream);
  }
};

struct ProgramTables {
  KernelTable kernels;
  ChunkKernelTable chunk_kernels;
};

template <std::size_t kProgram>
void AddTables(std::deque<ProgramTables>& tables) {
  if (kProgram >= Library::Get().programs().size()) return;
  const char* name = Library::Get().programs()[kProgram].name().c_str();
  tables.push_back(
      {gradientflow::testing::KernelsThrough<Runner<kProgram>>(name),
       gradientflow::testing::ChunkKernelsThrough<Runner<kProgram>>(name)});
}

const std::deque<ProgramTables>& AllTables() {
  static const auto* const all = [] {
    auto* tables = new std::deque<ProgramTables>;
    AddTables<0>(*tables);
    AddTables<1>(*tables);
    AddTables<2>(*tables);
    static_assert(kMostPrograms == 3);
    return tables;
  }();
  return *all;
}

}  // namespace

std::vector<const KernelTable*> Tables() {
  std::vector<const KernelTable*> tables;
  for (const ProgramTables& both : AllTables()) {
    tables.push_back(&both.kernels);
  }
  return tables;
}

std::vector<const ChunkKernelTable*> ChunkTables() {
  std::vector<const ChunkKernelTable*> tables;
  for (const ProgramTables& both : AllTables()) {
    tables.push_back(&both.chunk_kernels);
  }
  return tables;
}

void* AllocateTestMemory(std::size_t bytes) {
  return DeviceMemory::Get().Allocate(bytes);
}
void FreeTestMemory(void* memory, std::size_t) {
  DeviceMemory::Get().Free(memory);
}

void BeforeLaunch() {
  static const int error = LoadKernels().error;
  ASSERT_EQ(error, 0) << "the host code of the kernels does not load";
}

void AfterLaunch() {
  const Status fault = Machine::Get().TakeFault();
  if (!fault.ok()) ADD_FAILURE() << fault.message();
}

}  // namespace gradientflow::kernels::testing
