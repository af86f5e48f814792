#include <cmath>
#include <type_traits>

#include "tests/cuda_ptx/decode.h"
#include "tests/cuda_ptx/lanes.h"

// Comparisons, and choices by what they found.
namespace gradientflow::cuda_ptx {
namespace {

// If an operand is a NaN, a comparison is false, and its unordered form true.
template <bool kUnordered, class Op>
struct Ordered {
  template <class T>
  bool operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(a) || std::isnan(b)) return kUnordered;
    }
    return Op()(a, b);
  }
};
struct Equal {
  template <class T>
  bool operator()(T a, T b) const {
    return a == b;
  }
};
struct Less {
  template <class T>
  bool operator()(T a, T b) const {
    return a < b;
  }
};
template <class Op>
struct Opposite {
  template <class T>
  bool operator()(T a, T b) const {
    return !Op()(a, b);
  }
};
template <class Op>
struct Swapped {
  template <class T>
  bool operator()(T a, T b) const {
    return Op()(b, a);
  }
};
struct Always {
  template <class T>
  bool operator()(T, T) const {
    return true;
  }
};

enum Combination : std::uint32_t { kAlone, kAnd, kOr, kXor };

std::uint32_t Combine(std::uint32_t how, std::uint32_t found,
                      std::uint32_t other) {
  switch (how) {
    case kAnd:
      return found & other;
    case kOr:
      return found | other;
    case kXor:
      return found ^ other;
    default:
      return found;
  }
}

// Operand 0 = (1 compared to 2) combined with 3.
template <class T, class Op>
void Compare(const Registers& r, const Instruction& in, std::uint32_t lanes) {
  const T* a = r.At<T>(in.operands[1]);
  const T* b = r.At<T>(in.operands[2]);
  const std::uint32_t found =
      MaskOf(lanes, [=](unsigned l) { return Op()(a[l], b[l]); });
  const std::uint32_t other =
      in.detail == kAlone ? 0 : r.Predicate(in.operands[3]);
  SetPredicate(r, in.operands[0], lanes, Combine(in.detail, found, other));
}

template <bool kUnordered, class T>
Compute ComparisonOf(int which) {
  using Greater = Swapped<Less>;
  switch (which) {
    case 0:
      return &Compare<T, Ordered<kUnordered, Equal>>;
    case 1:
      return &Compare<T, Ordered<kUnordered, Opposite<Equal>>>;
    case 2:
      return &Compare<T, Ordered<kUnordered, Less>>;
    case 3:
      return &Compare<T, Ordered<kUnordered, Opposite<Greater>>>;
    case 4:
      return &Compare<T, Ordered<kUnordered, Greater>>;
    case 5:
      return &Compare<T, Ordered<kUnordered, Opposite<Less>>>;
    default:
      return nullptr;
  }
}

void DecodeCompare(Line& line) {
  const Type type = line.TakeType();
  line.out().detail =
      static_cast<std::uint32_t>(line.TakeOneOf({"and", "or", "xor"}) + 1);
  // Comparisons of unsigned integers have names of their own, too.
  int which = line.TakeOneOf({"eq", "ne", "lt", "le", "gt", "ge"});
  if (which < 0) which = line.TakeOneOf({"-", "--", "lo", "ls", "hi", "hs"});
  const int unordered =
      line.TakeOneOf({"equ", "neu", "ltu", "leu", "gtu", "geu"});
  const int nan = line.TakeOneOf({"num", "nan"});
  if (line.out().detail == kAlone) {
    line.Operands({Type::kPred, type, type});
  } else {
    line.Operands({Type::kPred, type, type, Type::kPred});
  }
  line.Computes(WithType(type, [=](auto value) -> Compute {
    using T = decltype(value);
    if constexpr (std::is_arithmetic_v<T> && sizeof(T) > 1) {
      if (nan == 0) return &Compare<T, Ordered<false, Always>>;
      if (nan == 1) return &Compare<T, Ordered<true, Opposite<Always>>>;
      if (unordered >= 0) return ComparisonOf<true, T>(unordered);
      return ComparisonOf<false, T>(which);
    }
    return nullptr;
  }));
}

template <class T>
void Select(const Registers& r, const Instruction& in, std::uint32_t lanes) {
  T* d = r.At<T>(in.operands[0]);
  const T* a = r.At<T>(in.operands[1]);
  const T* b = r.At<T>(in.operands[2]);
  const std::uint32_t which = r.Predicate(in.operands[3]);
  ForLanes(lanes,
           [=](unsigned l) { d[l] = (which >> l & 1U) != 0 ? a[l] : b[l]; });
}

void DecodeSelect(Line& line) {
  const Type type = line.TakeType();
  line.Operands({type, type, type, Type::kPred});
  switch (BytesOf(type)) {
    case 2:
      return line.Computes(&Select<std::uint16_t>);
    case 4:
      return line.Computes(&Select<std::uint32_t>);
    default:
      return line.Computes(&Select<std::uint64_t>);
  }
}

constexpr Row kRows[] = {{"setp", &DecodeCompare}, {"selp", &DecodeSelect}};

}  // namespace

std::span<const Row> CompareRows() { return kRows; }

}  // namespace gradientflow::cuda_ptx
