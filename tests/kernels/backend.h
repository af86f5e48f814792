#pragma once

#include <cstddef>
#include <vector>

#include "kernels/kernels.h"

// What the suites run on. One library per kind of memory defines all of this:
// tables_cpu.cc here, and its likes; a test links exactly one.
namespace gradientflow::kernels::testing {

// The tables under test. They live for ever.
std::vector<const KernelTable*> Tables();

// Memory that the tables work on and that the test too may read and write
// between two launches; a multiple of 64, not cleared. Ends in the test's own
// failure if there is none. FreeTestMemory: what AllocateTestMemory returned,
// with the same size.
void* AllocateTestMemory(std::size_t bytes);
void FreeTestMemory(void* memory, std::size_t bytes);

// Around every call of a table. After AfterLaunch() the call's work is done;
// between the two the test's memory is the device's.
void BeforeLaunch();
void AfterLaunch();

}  // namespace gradientflow::kernels::testing
