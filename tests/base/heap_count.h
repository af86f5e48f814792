#pragma once

#include <cstddef>
#include <cstdint>

// Counts the heap allocations of the code under test. A test that links this
// has another operator new.
namespace gradientflow::testing {

// Allocations of this thread so far, without those in the scope of an
// Uncounted.
std::uint64_t HeapAllocations();
// Bytes that all threads have allocated and not freed, those of gtest included.
std::size_t HeapBytes();

// For fakes, which allocate more than what they stand for.
class Uncounted {
 public:
  Uncounted();
  ~Uncounted();
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;
};

}  // namespace gradientflow::testing
