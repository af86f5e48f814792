#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "tests/cuda_ptx/program.h"
#include "tests/cuda_ptx/shared_memory.h"
#include "tests/cuda_ptx/warp.h"

// Runs the blocks of a launch, one after another.
namespace gradientflow::cuda_ptx {

struct Shape {
  unsigned blocks;
  unsigned threads;
  std::size_t shared_bytes;
};

class Block {
 public:
  // `parameters`: the kernel's, in memory that stays until the last Run().
  Block(Kernel& kernel, const Shape& shape, std::vector<std::byte>& parameters);

  // Runs block `index`, with an order of its warps and lanes that `random`
  // determines, for at most *steps instructions, which it counts down. The
  // error says what went wrong, and where.
  Status Run(unsigned index, std::mt19937_64& random, std::uint64_t* steps);
  // What all blocks have read from the device's memory and written to it.
  std::uint64_t moved_bytes() const { return moved_bytes_; }

 private:
  // How the warps and lanes of a block take turns.
  struct Order {
    enum class Warps { kAscending, kDescending, kRandom } warps;
    // Lanes that branched differently go on in turns, and meet where they must;
    // else those behind catch up first.
    bool apart;
    // In which lanes of a warp write, where that matters.
    bool lanes_descend;
    unsigned quantum;  // Instructions before another warp's turn.
  };

  void Start(unsigned index, std::mt19937_64& random);
  void Preset(Warp& warp, unsigned first_thread, unsigned index);
  // The warp whose turn it is, or null if none can go on.
  Warp* Next();
  void Turn(Warp& warp);
  bool Choose(Warp& warp);
  // Executes the next instruction of the warp's current fragment.
  void Step(Warp& warp);
  void Branch(Warp& warp, const Instruction& in, std::uint32_t lanes);
  void Exit(Warp& warp, std::uint32_t lanes);
  // Lanes come to an instruction where they wait for others.
  void Arrive(Warp& warp, std::uint32_t lanes);
  void Meet(Warp& warp, std::uint32_t at);
  void OpenBarrier();

  void Access(Warp& warp, const Instruction& in, std::uint32_t lanes);
  bool AllThere(const Instruction& in, std::uint32_t lanes,
                const std::uint64_t* at) const;
  bool Reach(Warp& warp, const Instruction& in, std::uint32_t lanes,
             std::byte** addresses);
  // Where lane's address leads, or null: then it has failed.
  std::byte* Resolve(const Warp& warp, unsigned lane, const Instruction& in,
                     std::uint64_t address);
  void Update(Warp& warp, const Instruction& in, std::uint32_t lanes,
              std::byte* const* addresses) const;

  void Fail(const Warp& warp, unsigned lane, const std::string& why);
  void FailOfWaiting();

  Kernel& kernel_;
  const Shape shape_;
  std::vector<std::byte>& parameters_;
  SharedMemory shared_;
  std::vector<Warp> warps_;
  Order order_{};
  std::mt19937_64* random_ = nullptr;
  std::uint64_t* steps_ = nullptr;
  std::uint64_t moved_bytes_ = 0;
  unsigned index_ = 0;
  std::size_t turn_ = 0;
  std::uint32_t stretch_ = 0;  // Of the block.
  Status failed_;
};

}  // namespace gradientflow::cuda_ptx
