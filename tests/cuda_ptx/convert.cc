#include <bit>
#include <cmath>
#include <type_traits>

#include "tests/cuda_ptx/decode.h"
#include "tests/cuda_ptx/lanes.h"
#include "tests/cuda_shim/include/cuda_bf16.h"
#include "tests/cuda_shim/include/cuda_fp16.h"

// Conversions between types, and between spaces of addresses.
namespace gradientflow::cuda_ptx {
namespace {

template <class T>
inline constexpr bool kInteger = std::is_integral_v<T>;
template <class T>
inline constexpr bool kReal = std::is_floating_point_v<T>;

std::uint16_t HalfOf(float v) { return __half_as_ushort(__float2half_rn(v)); }
std::uint16_t BFloatOf(float v) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(v));
}

// From S to D; only where kKnown.
template <class D, class S>
struct Cast {
  static constexpr bool kKnown =
      (kInteger<D> && kInteger<S>) || (kReal<D> && (kInteger<S> || kReal<S>));
  D operator()(S v) const { return static_cast<D>(v); }
};
template <>
struct Cast<float, HalfBits> {
  static constexpr bool kKnown = true;
  float operator()(HalfBits v) const {
    return __half2float(__ushort_as_half(v.bits));
  }
};
template <>
struct Cast<float, BFloatBits> {
  static constexpr bool kKnown = true;
  float operator()(BFloatBits v) const {
    return std::bit_cast<float>(std::uint32_t{v.bits} << 16);
  }
};
template <>
struct Cast<HalfBits, float> {
  static constexpr bool kKnown = true;
  HalfBits operator()(float v) const { return {HalfOf(v)}; }
};
template <>
struct Cast<BFloatBits, float> {
  static constexpr bool kKnown = true;
  BFloatBits operator()(float v) const { return {BFloatOf(v)}; }
};

// A register may be wider than the type: of a source the low bytes count, and a
// result is extended as its type says.
template <class D, class S>
void Convert(const Registers& r, const Instruction& in, std::uint32_t lanes) {
  const Operand to = in.operands[0];
  const Operand from = in.operands[1];
  const std::byte* source = r.At<std::byte>(from);
  std::byte* result = r.At<std::byte>(to);
  ForLanes(lanes, [=](unsigned l) {
    S value;
    __builtin_memcpy(&value, source + l * from.bytes, sizeof(S));
    const D converted = Cast<D, S>()(value);
    if constexpr (kInteger<D>) {
      // Extended by its sign, if it has one.
      const auto extended = static_cast<std::uint64_t>(converted);
      __builtin_memcpy(result + l * to.bytes, &extended, to.bytes);
    } else {
      __builtin_memcpy(result + l * to.bytes, &converted, sizeof(D));
    }
  });
}

template <class D>
Compute ConversionTo(Type from) {
  return WithType(from, [](auto value) -> Compute {
    using S = decltype(value);
    if constexpr (requires { Cast<D, S>::kKnown; }) {
      if constexpr (Cast<D, S>::kKnown) return &Convert<D, S>;
    }
    return nullptr;
  });
}

// Two float32 to a word; the first of them becomes its upper half.
template <std::uint16_t (*kNarrow)(float)>
void ConvertPair(const Registers& r, const Instruction& in,
                 std::uint32_t lanes) {
  auto* d = r.At<std::uint32_t>(in.operands[0]);
  const float* a = r.At<float>(in.operands[1]);
  const float* b = r.At<float>(in.operands[2]);
  ForLanes(lanes, [=](unsigned l) {
    d[l] = std::uint32_t{kNarrow(a[l])} << 16 | kNarrow(b[l]);
  });
}

void DecodeConvert(Line& line) {
  const Type from = line.TakeType();
  const Type to = line.TakeType();
  const bool rounds = line.Take("rn");
  if (to == Type::kF16x2 || to == Type::kBF16x2) {
    if (!rounds || from != Type::kF32) line.Fail("expected .rn, from .f32");
    line.Operands({Type::kB32, Type::kF32, Type::kF32});
    return line.Computes(to == Type::kF16x2 ? &ConvertPair<&HalfOf>
                                            : &ConvertPair<&BFloatOf>);
  }
  const bool narrows = IsFloat(from) && BytesOf(to) < BytesOf(from);
  if (narrows && !rounds) line.Fail("expected .rn");
  line.Expect(2);
  line.out().operands[0] = line.Write(line.text(0), to, !IsFloat(to));
  line.out().operands[1] = line.Read(line.text(1), from, !IsFloat(from));
  line.Computes(WithType(to, [=](auto value) -> Compute {
    return ConversionTo<decltype(value)>(from);
  }));
}

// Only shared memory has addresses of its own; the other spaces are generic.
template <bool kToShared>
void MoveWindow(const Registers& r, const Instruction& in,
                std::uint32_t lanes) {
  auto* d = r.At<std::uint64_t>(in.operands[0]);
  const auto* a = r.At<std::uint64_t>(in.operands[1]);
  ForLanes(lanes, [=](unsigned l) {
    d[l] = kToShared ? a[l] - kSharedWindow : a[l] + kSharedWindow;
  });
}
void Copy(const Registers& r, const Instruction& in, std::uint32_t lanes) {
  auto* d = r.At<std::uint64_t>(in.operands[0]);
  const auto* a = r.At<std::uint64_t>(in.operands[1]);
  ForLanes(lanes, [=](unsigned l) { d[l] = a[l]; });
}

void DecodeAddress(Line& line) {
  if (BytesOf(line.TakeType()) != 8) line.Fail("expected .u64");
  const bool to = line.Take("to");
  const int space = line.TakeOneOf({"shared", "global", "param"});
  if (space < 0) line.Fail("expected .shared, .global or .param");
  line.Operands({Type::kB64, Type::kB64});
  line.Computes(space != 0 ? &Copy
                : to       ? &MoveWindow<true>
                           : &MoveWindow<false>);
}

constexpr Row kRows[] = {{"cvt", &DecodeConvert}, {"cvta", &DecodeAddress}};

}  // namespace

std::span<const Row> ConvertRows() { return kRows; }

}  // namespace gradientflow::cuda_ptx
