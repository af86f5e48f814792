#include <algorithm>
#include <array>
#include <bit>

#include "gradientflow/base/str_cat.h"
#include "tests/cuda_ptx/block.h"
#include "tests/cuda_ptx/lanes.h"
#include "tests/cuda_ptx/memory.h"

// How blocks access memory, and what they may not.
namespace gradientflow::cuda_ptx {
namespace {

AccessKind KindOf(const Instruction& in) {
  return in.kind == Kind::kLoad    ? AccessKind::kRead
         : in.kind == Kind::kStore ? AccessKind::kWrite
                                   : AccessKind::kAtomic;
}

bool Inside(std::uint64_t address, std::size_t bytes, const void* memory,
            std::size_t size) {
  const std::uint64_t at = address - reinterpret_cast<std::uintptr_t>(memory);
  return at < size && bytes <= size - at;
}

// The bytes of an access are a power of two.
bool IsAligned(std::uint64_t address, std::size_t bytes) {
  return (address & (bytes - 1)) == 0;
}

}  // namespace

std::byte* Block::Resolve(const Warp& warp, unsigned lane,
                          const Instruction& in, std::uint64_t address) {
  const std::size_t bytes = std::size_t{in.access.bytes} * in.access.count;
  const auto fail = [&](const char* why) -> std::byte* {
    Fail(warp, lane, StrCat(why, ": address 0x", std::hex, address));
    return nullptr;
  };
  if (!IsAligned(address, bytes)) return fail("misaligned");
  const Space space = in.access.space;
  const bool window =
      space == Space::kGeneric && (address >> 56) == (kSharedWindow >> 56);
  if (space == Space::kShared || window) {
    const std::uint64_t at =
        address - kSharedBegin - (window ? kSharedWindow : 0);
    if (at >= shared_.size() || bytes > shared_.size() - at) {
      return fail("not in shared memory");
    }
    const Moment now = {stretch_, warp.stretch,
                        static_cast<std::uint16_t>(warp.first_thread + lane)};
    const char* wrong = shared_.Note(now, KindOf(in), at, bytes);
    return wrong != nullptr ? fail(wrong) : shared_.data() + at;
  }
  const bool parameter =
      in.kind == Kind::kLoad && space != Space::kGlobal &&
      Inside(address, bytes, parameters_.data(), parameters_.size());
  const bool there = parameter || (space != Space::kParam &&
                                   DeviceMemory::Get().Has(address, bytes));
  if (!there) return fail("not in memory of the device");
  return reinterpret_cast<std::byte*>(address);  // NOLINT: an address.
}

// Whether all addresses are aligned and in one allocation, or all in the
// parameters. Nearly all are; for the others each lane asks by itself.
bool Block::AllThere(const Instruction& in, std::uint32_t lanes,
                     const std::uint64_t* at) const {
  const Space space = in.access.space;
  if (space != Space::kGlobal && space != Space::kParam) return false;
  std::uint64_t first = ~std::uint64_t{0};
  std::uint64_t last = 0;
  std::uint64_t bits = 0;
  ForLanes(lanes, [&](unsigned l) {
    first = std::min(first, at[l]);
    last = std::max(last, at[l]);
    bits |= at[l];
  });
  const std::size_t bytes = std::size_t{in.access.bytes} * in.access.count;
  if (!IsAligned(bits, bytes)) return false;
  const std::uint64_t all = last - first + bytes;
  if (space == Space::kGlobal) return DeviceMemory::Get().Has(first, all);
  return in.kind == Kind::kLoad &&
         Inside(first, all, parameters_.data(), parameters_.size());
}

bool Block::Reach(Warp& warp, const Instruction& in, std::uint32_t lanes,
                  std::byte** addresses) {
  const Registers registers = warp.registers();
  const Operand base = in.operands[0];
  const auto* of32 = registers.At<std::uint32_t>(base);
  const auto* of64 = registers.At<std::uint64_t>(base);
  const auto offset = static_cast<std::uint64_t>(in.access.offset);
  std::array<std::uint64_t, kLanes> at{};
  ForLanes(lanes, [&](unsigned l) {
    at[l] = offset + (base.bytes == 4 ? of32[l] : of64[l]);
  });
  const bool there = AllThere(in, lanes, at.data());
  for (std::uint32_t left = lanes; left != 0; left &= left - 1) {
    const auto lane = static_cast<unsigned>(std::countr_zero(left));
    addresses[lane] =
        there ? reinterpret_cast<std::byte*>(at[lane])  // NOLINT: an address.
              : Resolve(warp, lane, in, at[lane]);
    if (addresses[lane] == nullptr) return false;
  }
  return true;
}

void Block::Access(Warp& warp, const Instruction& in, std::uint32_t lanes) {
  std::array<std::byte*, kLanes> addresses;
  if (!Reach(warp, in, lanes, addresses.data())) return;
  if (in.access.space == Space::kGlobal) {
    moved_bytes_ += std::uint64_t{in.access.bytes} * in.access.count *
                    static_cast<unsigned>(std::popcount(lanes));
  }
  if (in.kind == Kind::kAtomic) {
    return Update(warp, in, lanes, addresses.data());
  }
  const Registers registers = warp.registers();
  for (unsigned i = 0; i < in.access.count; ++i) {
    const Operand element = in.operands[i + 1];
    // A load has no register for an element that nobody wants.
    if (element.bytes != 0) {
      in.move(registers, element, addresses.data(), lanes);
    }
    ForLanes(lanes, [&](unsigned l) { addresses[l] += in.access.bytes; });
  }
}

void Block::Update(Warp& warp, const Instruction& in, std::uint32_t lanes,
                   std::byte* const* addresses) const {
  const Registers registers = warp.registers();
  const Operand operand = in.operands[1];
  for (unsigned i = 0; i < kLanes; ++i) {
    const unsigned lane = order_.lanes_descend ? kLanes - 1 - i : i;
    if ((lanes >> lane & 1U) == 0) continue;
    std::uint64_t old = 0;
    std::uint64_t value = 0;
    __builtin_memcpy(&old, addresses[lane], in.access.bytes);
    __builtin_memcpy(&value,
                     registers.At<std::byte>(operand) + lane * operand.bytes,
                     in.access.bytes);
    const std::uint64_t updated = in.update(old, value);
    __builtin_memcpy(addresses[lane], &updated, in.access.bytes);
    if (in.detail == 0) continue;
    __builtin_memcpy(
        registers.At<std::byte>(in.operands[2]) + lane * in.access.bytes, &old,
        in.access.bytes);
  }
}

}  // namespace gradientflow::cuda_ptx
