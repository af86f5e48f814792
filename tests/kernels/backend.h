#pragma once

#include <cstddef>
#include <vector>

#include "kernels/kernels.h"

// The backend on which the suites run. Each kind of memory has a library that
// defines all of this, such as tables_cpu.cc; a test links exactly one of them.
namespace gradientflow::kernels::testing {

// The tables under test. They are never destroyed.
std::vector<const KernelTable*> Tables();

// Memory on which the tables work and which the test may read and write between
// launches. Its address is a multiple of 64, and it is not cleared. If there is
// none, the test fails. FreeTestMemory() takes what AllocateTestMemory()
// returned, with the same size.
void* AllocateTestMemory(std::size_t bytes);
void FreeTestMemory(void* memory, std::size_t bytes);

// Called before and after every call of a table. After AfterLaunch() the work
// of the call is done; between the two the test's memory belongs to the device.
void BeforeLaunch();
void AfterLaunch();

}  // namespace gradientflow::kernels::testing
