#include "tests/cuda_ptx/tables_ptx.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <deque>
#include <vector>

#include "kernels/chunk_kernels.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/kernels.h"
#include "tests/cuda_ptx/machine.h"
#include "tests/cuda_ptx/memory.h"
#include "tests/device/kernel_tables.h"
#include "tests/kernels/backend.h"
#include "tests/kernels/chunk_oracle.h"

// The backend of the suites: tables whose calls go to the host code of the CUDA
// kernels. Either there is one, whose kernels are those of each architecture in
// turn; or one for each program of the library, so that every case runs once
// for every architecture whose code differs, and has its name.
namespace gradientflow::kernels::testing {
namespace {

using cuda_ptx::DeviceMemory;
using cuda_ptx::Library;
using cuda_ptx::Machine;
using cuda_ptx::Program;

constexpr int kAllInTurn = -1;
constexpr int kMostPrograms = 3;

template <int kProgram>
struct Runner {
  static void Choose() {
    Program* program = nullptr;
    if constexpr (kProgram != kAllInTurn) {
      program = &Library::Get().programs()[kProgram];
    }
    Machine::Get().SetProgram(program);
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

struct BothTables {
  KernelTable kernels;
  ChunkKernelTable chunk_kernels;
};

template <int kProgram>
BothTables TablesOf(const char* name) {
  return {gradientflow::testing::KernelsThrough<Runner<kProgram>>(name),
          gradientflow::testing::ChunkKernelsThrough<Runner<kProgram>>(name)};
}

template <int kProgram>
void AddTables(std::deque<BothTables>& tables) {
  if (kProgram >= static_cast<int>(Library::Get().programs().size())) return;
  tables.push_back(
      TablesOf<kProgram>(Library::Get().programs()[kProgram].name().c_str()));
}

const std::deque<BothTables>& AllTables() {
  static const auto* const all = [] {
    auto* tables = new std::deque<BothTables>;
    if (cuda_ptx::ArchitecturesTakeTurns()) {
      tables->push_back(TablesOf<kAllInTurn>("every_architecture_in_turn"));
      return tables;
    }
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
  for (const BothTables& both : AllTables()) tables.push_back(&both.kernels);
  return tables;
}

std::vector<const ChunkKernelTable*> ChunkTables() {
  std::vector<const ChunkKernelTable*> tables;
  for (const BothTables& both : AllTables()) {
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
