#pragma once

#include <bit>
#include <cstdint>

#include "tests/cuda_ptx/program.h"

// Functions that compute an instruction for the lanes of a mask. Nearly always
// these are all lanes, and the loop becomes vector code. An operation Op is a
// class with a function of values.
namespace gradientflow::cuda_ptx {

template <class Do>
void ForLanes(std::uint32_t lanes, Do act) {
  if (lanes == kAllLanes) {
    // A result may replace an operand, but only the same lane's.
#pragma GCC ivdep
    for (unsigned lane = 0; lane < kLanes; ++lane) act(lane);
    return;
  }
  for (; lanes != 0; lanes &= lanes - 1) {
    act(static_cast<unsigned>(std::countr_zero(lanes)));
  }
}

// Bits for the lanes of the mask: bit(lane) for each.
template <class Bit>
std::uint32_t MaskOf(std::uint32_t lanes, Bit bit) {
  std::uint32_t mask = 0;
  ForLanes(lanes, [&](unsigned lane) {
    mask |= static_cast<std::uint32_t>(bit(lane)) << lane;
  });
  return mask;
}

inline void SetPredicate(const Registers& registers, Operand operand,
                         std::uint32_t lanes, std::uint32_t bits) {
  std::uint32_t& predicate = registers.Predicate(operand);
  predicate = (predicate & ~lanes) | (bits & lanes);
}

template <class D, class A, class Op>
void Unary(const Registers& r, const Instruction& in, std::uint32_t lanes) {
  D* d = r.At<D>(in.operands[0]);
  const A* a = r.At<A>(in.operands[1]);
  ForLanes(lanes, [=](unsigned l) { d[l] = static_cast<D>(Op()(a[l])); });
}

template <class D, class A, class B, class Op>
void Binary(const Registers& r, const Instruction& in, std::uint32_t lanes) {
  D* d = r.At<D>(in.operands[0]);
  const A* a = r.At<A>(in.operands[1]);
  const B* b = r.At<B>(in.operands[2]);
  ForLanes(lanes, [=](unsigned l) { d[l] = static_cast<D>(Op()(a[l], b[l])); });
}

template <class D, class A, class B, class C, class Op>
void Ternary(const Registers& r, const Instruction& in, std::uint32_t lanes) {
  D* d = r.At<D>(in.operands[0]);
  const A* a = r.At<A>(in.operands[1]);
  const B* b = r.At<B>(in.operands[2]);
  const C* c = r.At<C>(in.operands[3]);
  ForLanes(lanes,
           [=](unsigned l) { d[l] = static_cast<D>(Op()(a[l], b[l], c[l])); });
}

}  // namespace gradientflow::cuda_ptx
