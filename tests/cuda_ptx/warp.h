#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/cuda_ptx/program.h"

// 32 threads with their registers. Lanes that are at the same place form a
// fragment, and execute an instruction together.
namespace gradientflow::cuda_ptx {

struct Fragment {
  std::uint32_t lanes;
  std::uint32_t at;  // The next instruction.
  bool waits;        // There, for other lanes or warps.
};

struct Warp {
  explicit Warp(std::size_t register_bytes) : bytes(register_bytes + kSlack) {}

  Registers registers() {
    // Vector code likes aligned registers.
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
    return Registers(bytes.data() + (kSlack - address % kSlack) % kSlack);
  }
  // The current one.
  Fragment& fragment() { return fragments[current]; }

  static constexpr std::size_t kSlack = 64;

  std::vector<std::byte> bytes;
  unsigned first_thread = 0;
  std::uint32_t lanes = 0;  // That exist,
  std::uint32_t ended = 0;  // and have ended.
  std::uint32_t stretch = 0;
  std::vector<Fragment> fragments;
  std::size_t current = 0;
};

// What the lanes of a mask exchange, once all of them have come.
void Exchange(const Registers& registers, const Instruction& in,
              std::uint32_t lanes);
// The lane whose value `lane` gets in a shuffle; `in_range` as PTX defines it.
unsigned SourceLane(const Registers& registers, const Instruction& in,
                    unsigned lane, bool* in_range);
// The lanes with which `lane` waits there.
std::uint32_t MaskOfLane(const Registers& registers, const Instruction& in,
                         unsigned lane);

}  // namespace gradientflow::cuda_ptx
