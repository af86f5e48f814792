#include <algorithm>
#include <cmath>
#include <type_traits>

#include "tests/cuda_ptx/decode.h"
#include "tests/cuda_ptx/lanes.h"

// Sums, products, minima. Integers wrap; floats are rounded to nearest, one
// operation at a time.
namespace gradientflow::cuda_ptx {
namespace {

template <class T>
inline constexpr bool kInteger = std::is_integral_v<T>;
template <class T>
inline constexpr bool kReal = std::is_floating_point_v<T>;
template <class T>
inline constexpr bool kNumber = kInteger<T> || kReal<T>;

// Integers of 32 bits or more, in which nothing overflows.
template <class T, bool = kInteger<T>>
struct WrapOf {
  using Type = T;
};
template <class T>
struct WrapOf<T, true> {
  using Type = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
};
template <class T>
using Wrap = typename WrapOf<T>::Type;

struct Add {
  template <class T>
  Wrap<T> operator()(T a, T b) const {
    return static_cast<Wrap<T>>(a) + static_cast<Wrap<T>>(b);
  }
};
struct Subtract {
  template <class T>
  Wrap<T> operator()(T a, T b) const {
    return static_cast<Wrap<T>>(a) - static_cast<Wrap<T>>(b);
  }
};
struct Multiply {
  template <class T>
  Wrap<T> operator()(T a, T b) const {
    return static_cast<Wrap<T>>(a) * static_cast<Wrap<T>>(b);
  }
};
struct Negate {
  template <class T>
  Wrap<T> operator()(T a) const {
    return -static_cast<Wrap<T>>(a);
  }
};
struct Magnitude {
  template <class T>
  auto operator()(T a) const {
    if constexpr (kReal<T>) {
      return std::fabs(a);
    } else {
      const auto bits = static_cast<Wrap<T>>(a);
      return a < 0 ? -bits : bits;
    }
  }
};
// A NaN gives way to a number, and -0 is less than +0.
struct Least {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (kReal<T>) {
      if (a == b) return std::signbit(a) ? a : b;
      return std::fmin(a, b);
    } else {
      return std::min(a, b);
    }
  }
};
struct Greatest {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (kReal<T>) {
      if (a == b) return std::signbit(a) ? b : a;
      return std::fmax(a, b);
    } else {
      return std::max(a, b);
    }
  }
};
// What CUDA leaves open; all bits, as its devices do.
struct Divide {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (kReal<T>) {
      return a / b;
    } else {
      if (b == 0) return static_cast<T>(-1);
      if (std::is_signed_v<T> && b == static_cast<T>(-1)) {
        return static_cast<T>(-static_cast<Wrap<T>>(a));
      }
      return static_cast<T>(a / b);
    }
  }
};
struct Remainder {
  template <class T>
  T operator()(T a, T b) const {
    if (b == 0) return static_cast<T>(-1);
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};
struct Root {
  template <class T>
  T operator()(T a) const {
    return std::sqrt(a);
  }
};
struct Reciprocal {
  template <class T>
  T operator()(T a) const {
    return T{1} / a;
  }
};
struct Fused {
  template <class T>
  T operator()(T a, T b, T c) const {
    return std::fma(a, b, c);
  }
};

template <class T>
using Twice = std::conditional_t<
    sizeof(T) == 2,
    std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>,
    std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>;

struct WideProduct {
  template <class T>
  Twice<T> operator()(T a, T b) const {
    return static_cast<Twice<T>>(a) * static_cast<Twice<T>>(b);
  }
};
struct HighProduct {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (sizeof(T) == 8) {
      using Long =
          std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
      return static_cast<T>((static_cast<Long>(a) * static_cast<Long>(b)) >>
                            64);
    } else {
      return static_cast<T>(WideProduct()(a, b) >> (8 * sizeof(T)));
    }
  }
};
// A product, of which kind is Product, and a sum.
template <class Product>
struct AndAdd {
  template <class T, class C>
  Wrap<C> operator()(T a, T b, C c) const {
    return static_cast<Wrap<C>>(static_cast<C>(Product()(a, b))) +
           static_cast<Wrap<C>>(c);
  }
};

template <class Op>
Compute BinaryOf(Type type) {
  return WithType(type, [](auto value) -> Compute {
    using T = decltype(value);
    if constexpr (kNumber<T> && sizeof(T) > 1) return &Binary<T, T, T, Op>;
    return nullptr;
  });
}

template <class Op>
Compute UnaryOf(Type type) {
  return WithType(type, [](auto value) -> Compute {
    using T = decltype(value);
    if constexpr (kNumber<T> && sizeof(T) > 1) return &Unary<T, T, Op>;
    return nullptr;
  });
}

// To nearest is the only rounding here.
void TakeRounding(Line& line) { line.Take("rn"); }

template <class Op>
void DecodeBinary(Line& line) {
  const Type type = line.TakeType();
  if (IsFloat(type)) TakeRounding(line);
  line.Operands({type, type, type});
  line.Computes(BinaryOf<Op>(type));
}

template <class Op>
void DecodeUnary(Line& line) {
  const Type type = line.TakeType();
  if (IsFloat(type)) TakeRounding(line);
  line.Operands({type, type});
  line.Computes(UnaryOf<Op>(type));
}

Type TwiceOf(Type type) {
  switch (type) {
    case Type::kU16:
      return Type::kU32;
    case Type::kS16:
      return Type::kS32;
    case Type::kU32:
      return Type::kU64;
    default:
      return Type::kS64;
  }
}

template <template <class> class Make, class Product>
Compute WideOf(Type type) {
  return WithType(type, [](auto value) -> Compute {
    using T = decltype(value);
    if constexpr (kInteger<T> && (sizeof(T) == 2 || sizeof(T) == 4)) {
      return Make<Product>::template Of<T, Twice<T>>();
    }
    return nullptr;
  });
}
template <template <class> class Make, class Product>
Compute NarrowOf(Type type) {
  return WithType(type, [](auto value) -> Compute {
    using T = decltype(value);
    if constexpr (kInteger<T> && sizeof(T) > 1) {
      return Make<Product>::template Of<T, T>();
    }
    return nullptr;
  });
}

template <class Product>
struct Alone {
  template <class T, class D>
  static Compute Of() {
    return &Binary<D, T, T, Product>;
  }
};
template <class Product>
struct Added {
  template <class T, class D>
  static Compute Of() {
    return &Ternary<D, T, T, D, AndAdd<Product>>;
  }
};

template <template <class> class Make>
Compute ProductOf(Line& line, Type type, bool wide) {
  if (wide) return WideOf<Make, WideProduct>(type);
  if (line.Take("hi")) return NarrowOf<Make, HighProduct>(type);
  if (!line.Take("lo")) line.Fail("expected .lo, .hi or .wide");
  return NarrowOf<Make, Multiply>(type);
}

void DecodeMultiply(Line& line) {
  const Type type = line.TakeType();
  if (IsFloat(type)) {
    TakeRounding(line);
    line.Operands({type, type, type});
    return line.Computes(BinaryOf<Multiply>(type));
  }
  const bool wide = line.Take("wide");
  line.Operands({wide ? TwiceOf(type) : type, type, type});
  line.Computes(ProductOf<Alone>(line, type, wide));
}

void DecodeMultiplyAdd(Line& line) {
  const Type type = line.TakeType();
  const bool wide = line.Take("wide");
  const Type sum = wide ? TwiceOf(type) : type;
  line.Operands({sum, type, type, sum});
  line.Computes(ProductOf<Added>(line, type, wide));
}

void DecodeFused(Line& line) {
  const Type type = line.TakeType();
  TakeRounding(line);
  line.Operands({type, type, type, type});
  line.Computes(type == Type::kF32 ? &Ternary<float, float, float, float, Fused>
                : type == Type::kF64
                    ? &Ternary<double, double, double, double, Fused>
                    : nullptr);
}

template <class Op>
void DecodeRounded(Line& line) {
  const Type type = line.TakeType();
  if (!line.Take("rn")) line.Fail("expected .rn");
  line.Operands({type, type});
  line.Computes(type == Type::kF32   ? &Unary<float, float, Op>
                : type == Type::kF64 ? &Unary<double, double, Op>
                                     : nullptr);
}

void DecodeDivide(Line& line) {
  const Type type = line.TakeType();
  if (IsFloat(type) && !line.Take("rn")) line.Fail("expected .rn");
  line.Operands({type, type, type});
  line.Computes(BinaryOf<Divide>(type));
}

void DecodeRemainder(Line& line) {
  const Type type = line.TakeType();
  line.Operands({type, type, type});
  line.Computes(WithType(type, [](auto value) -> Compute {
    using T = decltype(value);
    if constexpr (kInteger<T> && sizeof(T) > 1) {
      return &Binary<T, T, T, Remainder>;
    }
    return nullptr;
  }));
}

constexpr Row kRows[] = {
    {"add", &DecodeBinary<Add>},
    {"sub", &DecodeBinary<Subtract>},
    {"min", &DecodeBinary<Least>},
    {"max", &DecodeBinary<Greatest>},
    {"neg", &DecodeUnary<Negate>},
    {"abs", &DecodeUnary<Magnitude>},
    {"mul", &DecodeMultiply},
    {"mad", &DecodeMultiplyAdd},
    {"fma", &DecodeFused},
    {"sqrt", &DecodeRounded<Root>},
    {"rcp", &DecodeRounded<Reciprocal>},
    {"div", &DecodeDivide},
    {"rem", &DecodeRemainder},
};

}  // namespace

std::span<const Row> ArithmeticRows() { return kRows; }

}  // namespace gradientflow::cuda_ptx
