#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

// PTX's fundamental types, and the types of C++ in which they are computed.
namespace gradientflow::cuda_ptx {

enum class Type : std::uint8_t {
  kNone,
  kPred,
  kB8,
  kU8,
  kS8,
  kB16,
  kU16,
  kS16,
  kF16,
  kBF16,
  kB32,
  kU32,
  kS32,
  kF32,
  kF16x2,
  kBF16x2,
  kB64,
  kU64,
  kS64,
  kF64,
};

// Values of 16 bits that only conversions interpret.
struct HalfBits {
  std::uint16_t bits;
};
struct BFloatBits {
  std::uint16_t bits;
};

// kNone if no type has this name ("f32").
Type TypeNamed(std::string_view name);

// 0 for a predicate.
constexpr unsigned BytesOf(Type type) {
  if (type <= Type::kPred) return 0;
  if (type <= Type::kS8) return 1;
  if (type <= Type::kBF16) return 2;
  return type <= Type::kBF16x2 ? 4 : 8;
}

constexpr bool IsFloat(Type type) {
  return type == Type::kF32 || type == Type::kF64;
}

// Calls visit(T()) with the type of C++ behind `type`. REQUIRES: not kNone, not
// kPred, no pair of halves.
template <class Visit>
auto WithType(Type type, Visit visit) {
  switch (type) {
    case Type::kS8:
      return visit(std::int8_t());
    case Type::kB8:
    case Type::kU8:
      return visit(std::uint8_t());
    case Type::kS16:
      return visit(std::int16_t());
    case Type::kB16:
    case Type::kU16:
      return visit(std::uint16_t());
    case Type::kF16:
      return visit(HalfBits());
    case Type::kBF16:
      return visit(BFloatBits());
    case Type::kS32:
      return visit(std::int32_t());
    case Type::kF32:
      return visit(float());
    case Type::kS64:
      return visit(std::int64_t());
    case Type::kB64:
    case Type::kU64:
      return visit(std::uint64_t());
    case Type::kF64:
      return visit(double());
    default:
      return visit(std::uint32_t());
  }
}

}  // namespace gradientflow::cuda_ptx
