#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/cuda_ptx/program.h"

// Kernels with one mistake each, which tests should notice.
namespace gradientflow::cuda_ptx {

enum class Mistake : std::uint8_t {
  kNone,          // For comparison.
  kNoBarrier,     // A barrier, of the block or of a warp, is gone.
  kOtherAddress,  // A load, store or atomic goes to the neighbour.
};

struct Mutant {
  Kernel* kernel;
  std::size_t at;  // The instruction.
  Mistake mistake;
};

// One for each barrier and each access to global or shared memory, in the order
// of the code.
std::vector<Mutant> MutantsOf(Kernel& kernel);

// The name of the kernel as C++ has it, the instruction, and which one of its
// kind this is in the kernel.
std::string NameOf(const Mutant& mutant);

// The kernel is that mutant while this lives.
class Mutated {
 public:
  explicit Mutated(const Mutant& mutant);
  ~Mutated();
  Mutated(const Mutated&) = delete;
  Mutated& operator=(const Mutated&) = delete;

 private:
  Instruction& place_;
  const Instruction original_;
};

}  // namespace gradientflow::cuda_ptx
