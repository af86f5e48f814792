#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/cuda_ptx/types.h"

// A kernel in the form in which warps execute it. The 32 threads of a warp are
// its lanes; each register of PTX is an array of 32 values, so that one call
// executes an instruction for all lanes that have come to it.
namespace gradientflow::cuda_ptx {

inline constexpr unsigned kLanes = 32;
inline constexpr std::uint32_t kAllLanes = 0xFFFFFFFFU;

// Where the lanes' values of a register or constant begin among the bytes of a
// warp, and how many bytes each has. Of a predicate, which has 0 bytes per
// lane, all lanes share 4: a bit each.
struct Operand {
  std::uint32_t place = 0;
  std::uint32_t bytes = 0;
};

// The registers of one warp.
class Registers {
 public:
  explicit Registers(std::byte* bytes) : bytes_(bytes) {}

  template <class T>
  T* At(Operand operand) const {
    return reinterpret_cast<T*>(bytes_ + operand.place);
  }
  std::uint32_t& Predicate(Operand operand) const {
    return *At<std::uint32_t>(operand);
  }

 private:
  std::byte* bytes_;
};

struct Instruction;

// Computes operand 0 from the others, for the lanes of the mask.
using Compute = void (*)(const Registers&, const Instruction&,
                         std::uint32_t lanes);
// Moves values of a register to or from memory, for the lanes of the mask.
using Move = void (*)(const Registers&, Operand, std::byte* const* addresses,
                      std::uint32_t lanes);
// The new value of memory that had `old`, of an atomic.
using Update = std::uint64_t (*)(std::uint64_t old, std::uint64_t operand);

enum class Kind : std::uint8_t {
  kCompute,
  kNothing,
  kBranch,
  kExit,
  kTrap,
  kLoad,
  kStore,
  kAtomic,
  kBarrier,      // Of the block.
  kWarpBarrier,  // operand 0: the mask.
  kShuffle,  // 0: result, 1: value, 2: lane, 3: clamp, 4: mask, 5: in range.
  kVote,     // 0: result, 1: predicate, 2: mask.
};

enum class Space : std::uint8_t { kGeneric, kGlobal, kShared, kParam };
enum class Shuffle : std::uint8_t { kUp, kDown, kButterfly, kIndex };
enum class Vote : std::uint8_t { kBallot, kAny, kAll, kUniform };

struct Guard {
  bool present = false;
  bool negated = false;
  Operand predicate;
};

// An access: `count` neighbouring elements of `bytes` each. Operand 0 is the
// address, the others are the elements.
struct Access {
  Space space = Space::kGeneric;
  unsigned bytes = 0;
  unsigned count = 1;
  std::int64_t offset = 0;
};

struct Instruction {
  Kind kind = Kind::kNothing;
  Guard guard;
  Compute compute = nullptr;
  Move move = nullptr;
  Update update = nullptr;
  std::array<Operand, 9> operands;
  Access access;
  // What a kind needs besides: the target of a branch, a Shuffle, a Vote, the
  // table of a lop3, how a comparison is combined.
  std::uint32_t detail = 0;
  int line = 0;      // Of the file.
  std::string text;  // As the file has it.
};

// A register that has its value when a block begins.
enum class Special : std::uint8_t {
  kThread,
  kThreads,
  kBlock,
  kBlocks,
  kLane,
  kZero,
  kOne,
  kParam,  // The address of the parameters, plus `offset`.
};

struct Parameter {
  std::size_t offset;
  std::size_t bytes;
};

struct Kernel {
  struct Constant {
    Operand operand;
    std::uint64_t bits;
  };
  struct Preset {
    Operand operand;
    Special special;
    std::uint64_t offset;
  };

  std::string file;  // For messages.
  std::string name;
  std::vector<Instruction> code;
  std::vector<Constant> constants;
  std::vector<Preset> presets;
  std::size_t register_bytes = 0;       // Of a warp.
  std::size_t static_shared_bytes = 0;  // Dynamic memory follows.
  std::vector<Parameter> parameters;
  std::size_t parameter_bytes = 0;
  unsigned most_threads = 1024;
  // By instruction: whether any lane has executed it.
  std::vector<unsigned char> executed;
};

// Shared memory begins at this address of its own space, so that 0 is none, and
// there in the space of all addresses.
inline constexpr std::uint64_t kSharedBegin = 0x1000;
inline constexpr std::uint64_t kSharedWindow = std::uint64_t{0x7A} << 56;

// "file:line: instruction".
std::string Where(const Kernel& kernel, std::size_t at);

}  // namespace gradientflow::cuda_ptx
