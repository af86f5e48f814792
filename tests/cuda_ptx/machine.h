#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "gradientflow/base/status.h"
#include "tests/cuda_ptx/block.h"
#include "tests/cuda_ptx/library.h"

// What stands in for the GPU: it runs launches when they are called.
namespace gradientflow::cuda_ptx {

class Machine {
 public:
  static Machine& Get();

  // Orders of blocks, warps and lanes follow from the seed and the number of
  // launches since.
  void SetSeed(std::uint64_t seed) {
    seed_ = seed;
    launches_ = 0;
    turns_.clear();
  }
  std::uint64_t seed() const { return seed_; }
  // Whose kernels are launched from here on. Null: those of all programs, each
  // kernel's in turn; the seed says whose is first.
  void SetProgram(Program* program) { program_ = program; }
  // A launch of a kernel. Called again with the same memory, it does the same.
  using RunKernel = std::function<Status()>;
  // Is called for each launch from here on, and calls `run`.
  void SetAround(
      std::function<Status(Kernel& kernel, const RunKernel& run)> around) {
    around_ = std::move(around);
  }
  // All launches have one block from here on, which does all the work.
  void UseOneBlock() { one_block_ = true; }
  // A launch that takes more instructions is an error.
  void SetMostSteps(std::uint64_t steps) { most_steps_ = steps; }

  // Runs the kernel of this plain name; arguments[i] points to its parameter i.
  // About half of the launches have fewer blocks than was asked for: our
  // kernels loop over their work with the stride of the grid, and those loops
  // are to be seen. The error is kept until TakeFault().
  Status Launch(const std::string& name, const Shape& shape, void** arguments);

  // The first error since it was last called.
  Status TakeFault() { return std::exchange(fault_, Status()); }
  // Executed instructions, each by a warp.
  std::uint64_t steps() const { return steps_; }
  // Bytes that kernels have read from the device's memory and written to it.
  std::uint64_t moved_bytes() const { return moved_bytes_; }

 private:
  Program& ProgramFor(const std::string& kernel_name);
  Status Check(const Kernel& kernel, const Shape& shape) const;
  Status RunBlocks(Kernel& kernel, const Shape& asked, void** arguments);

  Program* program_ = nullptr;
  std::uint64_t seed_ = 0;
  std::uint64_t launches_ = 0;
  std::map<std::string, std::uint64_t> turns_;  // Of kernels.
  std::uint64_t steps_ = 0;
  std::uint64_t moved_bytes_ = 0;
  std::uint64_t most_steps_ = std::uint64_t{1} << 31;
  std::function<Status(Kernel&, const RunKernel&)> around_;
  bool one_block_ = false;
  Status fault_;
};

}  // namespace gradientflow::cuda_ptx
