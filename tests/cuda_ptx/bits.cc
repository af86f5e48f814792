#include <algorithm>
#include <type_traits>

#include "gradientflow/base/str_cat.h"
#include "tests/cuda_ptx/decode.h"
#include "tests/cuda_ptx/lanes.h"

// Instructions on bits, and moves.
namespace gradientflow::cuda_ptx {
namespace {

struct And {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};
struct Not {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(~a);
  }
};
struct Same {
  template <class T>
  T operator()(T a) const {
    return a;
  }
};
struct ShiftLeft {
  template <class T>
  T operator()(T a, std::uint32_t by) const {
    return by >= 8 * sizeof(T)
               ? T{0}
               : static_cast<T>(static_cast<std::uint64_t>(a) << by);
  }
};
struct ShiftRight {
  template <class T>
  T operator()(T a, std::uint32_t by) const {
    return static_cast<T>(a >> std::min<std::uint32_t>(by, 8 * sizeof(T) - 1) >>
                          (by >= 8 * sizeof(T) ? 1 : 0));
  }
};
// The upper or lower half of b:a, shifted.
template <bool kLeft, bool kWrap>
struct Funnel {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b,
                           std::uint32_t by) const {
    const std::uint32_t n = kWrap ? by & 31U : std::min(by, 32U);
    const std::uint64_t both = std::uint64_t{b} << 32 | a;
    return static_cast<std::uint32_t>(kLeft ? both << n >> 32 : both >> n);
  }
};
// Four of the eight bytes of b:a, or their signs, as `how` says.
struct Permute {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b,
                           std::uint32_t how) const {
    const std::uint64_t both = std::uint64_t{b} << 32 | a;
    std::uint32_t result = 0;
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned pick = how >> (4 * i) & 0xFU;
      std::uint32_t byte = both >> (8 * (pick & 7U)) & 0xFFU;
      if ((pick & 8U) != 0) byte = (byte & 0x80U) != 0 ? 0xFF : 0;
      result |= byte << (8 * i);
    }
    return result;
  }
};
template <class T>
struct Extract {
  T operator()(T a, std::uint32_t begin, std::uint32_t bits) const {
    begin &= 0xFFU;
    bits &= 0xFFU;
    if (begin >= 8 * sizeof(T) || bits == 0) return 0;
    const T shifted = static_cast<T>(a >> begin);
    return bits >= 8 * sizeof(T)
               ? shifted
               : static_cast<T>(shifted & ((T{1} << bits) - 1));
  }
};
struct Count {
  template <class T>
  std::uint32_t operator()(T a) const {
    return static_cast<std::uint32_t>(std::popcount(a));
  }
};
struct LeadingZeros {
  template <class T>
  std::uint32_t operator()(T a) const {
    return static_cast<std::uint32_t>(std::countl_zero(a));
  }
};
struct Reverse {
  template <class T>
  T operator()(T a) const {
    T result = 0;
    for (unsigned i = 0; i < 8 * sizeof(T); ++i) {
      result = static_cast<T>(result << 1 | (a >> i & 1U));
    }
    return result;
  }
};

template <class Op>
void PredicateBinary(const Registers& r, const Instruction& in,
                     std::uint32_t lanes) {
  SetPredicate(r, in.operands[0], lanes,
               Op()(r.Predicate(in.operands[1]), r.Predicate(in.operands[2])));
}
template <class Op>
void PredicateUnary(const Registers& r, const Instruction& in,
                    std::uint32_t lanes) {
  SetPredicate(r, in.operands[0], lanes, Op()(r.Predicate(in.operands[1])));
}

// The function for words of the type's size, whatever they mean.
template <class Visit>
Compute OfWords(Type type, Visit visit) {
  switch (BytesOf(type)) {
    case 2:
      return visit(std::uint16_t());
    case 4:
      return visit(std::uint32_t());
    case 8:
      return visit(std::uint64_t());
    default:
      return nullptr;
  }
}

template <class Op>
void DecodeLogic(Line& line) {
  const Type type = line.TakeType();
  line.Operands({type, type, type});
  line.Computes(type == Type::kPred ? &PredicateBinary<Op>
                                    : OfWords(type, [](auto v) -> Compute {
                                        using T = decltype(v);
                                        return &Binary<T, T, T, Op>;
                                      }));
}

void DecodeNot(Line& line) {
  const Type type = line.TakeType();
  line.Operands({type, type});
  line.Computes(type == Type::kPred ? &PredicateUnary<Not>
                                    : OfWords(type, [](auto v) -> Compute {
                                        using T = decltype(v);
                                        return &Unary<T, T, Not>;
                                      }));
}

void DecodeShiftLeft(Line& line) {
  const Type type = line.TakeType();
  line.Operands({type, type, Type::kU32});
  line.Computes(OfWords(type, [](auto v) -> Compute {
    using T = decltype(v);
    return &Binary<T, T, std::uint32_t, ShiftLeft>;
  }));
}

void DecodeShiftRight(Line& line) {
  const Type type = line.TakeType();
  line.Operands({type, type, Type::kU32});
  line.Computes(WithType(type, [](auto v) -> Compute {
    using T = decltype(v);
    if constexpr (std::is_integral_v<T> && sizeof(T) > 1) {
      return &Binary<T, T, std::uint32_t, ShiftRight>;
    }
    return nullptr;
  }));
}

template <class Op>
Compute OfThreeWords() {
  using U = std::uint32_t;
  return &Ternary<U, U, U, U, Op>;
}

void DecodeFunnel(Line& line) {
  if (line.TakeType() != Type::kB32) line.Fail("expected .b32");
  const bool left = line.TakeOneOf({"l", "r"}) == 0;
  const bool wrap = line.TakeOneOf({"wrap", "clamp"}) == 0;
  line.Operands({Type::kB32, Type::kB32, Type::kB32, Type::kU32});
  line.Computes(left ? (wrap ? OfThreeWords<Funnel<true, true>>()
                             : OfThreeWords<Funnel<true, false>>())
                     : (wrap ? OfThreeWords<Funnel<false, true>>()
                             : OfThreeWords<Funnel<false, false>>()));
}

void DecodePermute(Line& line) {
  if (line.TakeType() != Type::kB32) line.Fail("expected .b32");
  line.Operands({Type::kB32, Type::kB32, Type::kB32, Type::kB32});
  line.Computes(OfThreeWords<Permute>());
}

void DecodeExtract(Line& line) {
  const Type type = line.TakeType();
  line.Operands({type, type, Type::kU32, Type::kU32});
  using U = std::uint32_t;
  using L = std::uint64_t;
  line.Computes(type == Type::kU32   ? &Ternary<U, U, U, U, Extract<U>>
                : type == Type::kU64 ? &Ternary<L, L, U, U, Extract<L>>
                                     : nullptr);
}

// Any function of three bits, by its table of eight results.
void ByTable(const Registers& r, const Instruction& in, std::uint32_t lanes) {
  auto* d = r.At<std::uint32_t>(in.operands[0]);
  const auto* a = r.At<std::uint32_t>(in.operands[1]);
  const auto* b = r.At<std::uint32_t>(in.operands[2]);
  const auto* c = r.At<std::uint32_t>(in.operands[3]);
  ForLanes(lanes, [=, table = in.detail](unsigned l) {
    std::uint32_t result = 0;
    for (unsigned row = 0; row < 8; ++row) {
      if ((table >> row & 1U) == 0) continue;
      result |= ((row & 4U) != 0 ? a[l] : ~a[l]) &
                ((row & 2U) != 0 ? b[l] : ~b[l]) &
                ((row & 1U) != 0 ? c[l] : ~c[l]);
    }
    d[l] = result;
  });
}

void DecodeTable(Line& line) {
  if (line.TakeType() != Type::kB32) line.Fail("expected .b32");
  line.Expect(5);
  line.out().operands[0] = line.Write(line.text(0), Type::kB32);
  for (std::size_t i = 1; i < 4; ++i) {
    line.out().operands[i] = line.Read(line.text(i), Type::kB32);
  }
  line.out().detail =
      static_cast<std::uint32_t>(std::stoul(line.text(4), nullptr, 0));
  line.Computes(&ByTable);
}

template <class Op>
void DecodeCount(Line& line) {
  const Type type = line.TakeType();
  line.Operands({Type::kU32, type});
  using U = std::uint32_t;
  line.Computes(type == Type::kB32   ? &Unary<U, U, Op>
                : type == Type::kB64 ? &Unary<U, std::uint64_t, Op>
                                     : nullptr);
}

void DecodeReverse(Line& line) {
  const Type type = line.TakeType();
  line.Operands({type, type});
  line.Computes(OfWords(type, [](auto v) -> Compute {
    using T = decltype(v);
    return &Unary<T, T, Reverse>;
  }));
}

// The parts of a word to registers, operands 0 ..., from the last operand; a
// part that nobody wants has no register.
template <class Part, class Whole, unsigned kParts>
void TakeApart(const Registers& r, const Instruction& in, std::uint32_t lanes) {
  const Whole* whole = r.At<Whole>(in.operands[kParts]);
  for (unsigned part = 0; part < kParts; ++part) {
    if ((in.detail >> part & 1U) == 0) continue;
    Part* d = r.At<Part>(in.operands[part]);
    ForLanes(lanes, [=](unsigned l) {
      d[l] = static_cast<Part>(whole[l] >> (8 * sizeof(Part) * part));
    });
  }
}

template <class Part, class Whole, unsigned kParts>
void PutTogether(const Registers& r, const Instruction& in,
                 std::uint32_t lanes) {
  Whole* whole = r.At<Whole>(in.operands[0]);
  ForLanes(lanes, [=, &r](unsigned l) {
    Whole value = 0;
    for (unsigned part = 0; part < kParts; ++part) {
      const Whole bits = r.At<Part>(in.operands[part + 1])[l];
      value |= static_cast<Whole>(bits << (8 * sizeof(Part) * part));
    }
    whole[l] = value;
  });
}

Compute PartsOf(Type whole, std::size_t parts, bool apart) {
  using H = std::uint16_t;
  using U = std::uint32_t;
  using L = std::uint64_t;
  if (whole == Type::kB32 && parts == 2) {
    return apart ? &TakeApart<H, U, 2> : &PutTogether<H, U, 2>;
  }
  if (whole == Type::kB64 && parts == 2) {
    return apart ? &TakeApart<U, L, 2> : &PutTogether<U, L, 2>;
  }
  if (whole == Type::kB64 && parts == 4) {
    return apart ? &TakeApart<H, L, 4> : &PutTogether<H, L, 4>;
  }
  return nullptr;
}

void DecodeParts(Line& line, Type type) {
  line.Expect(2);
  const std::vector<std::string> to = line.Parts(0);
  const std::vector<std::string> from = line.Parts(1);
  const bool apart = to.size() > 1;
  const std::size_t parts = std::max(to.size(), from.size());
  const Type part = BytesOf(type) / parts == 2 ? Type::kB16 : Type::kB32;
  std::size_t place = 0;
  for (const std::string& text : to) {
    if (text != "_") {
      line.out().operands[place] = line.Write(text, apart ? part : type);
      line.out().detail |= 1U << place;
    }
    ++place;
  }
  for (const std::string& text : from) {
    line.out().operands[place++] = line.Read(text, apart ? type : part);
  }
  line.Computes(PartsOf(type, parts, apart));
}

void DecodeMove(Line& line) {
  const Type type = line.TakeType();
  if (line.size() == 2 && (line.text(0)[0] == '{' || line.text(1)[0] == '{')) {
    return DecodeParts(line, type);
  }
  line.Operands({type, type});
  line.Computes(type == Type::kPred ? &PredicateUnary<Same>
                                    : OfWords(type, [](auto v) -> Compute {
                                        using T = decltype(v);
                                        return &Unary<T, T, Same>;
                                      }));
}

constexpr Row kRows[] = {
    {"and", &DecodeLogic<And>},    {"or", &DecodeLogic<Or>},
    {"xor", &DecodeLogic<Xor>},    {"not", &DecodeNot},
    {"shl", &DecodeShiftLeft},     {"shr", &DecodeShiftRight},
    {"shf", &DecodeFunnel},        {"prmt", &DecodePermute},
    {"bfe", &DecodeExtract},       {"lop3", &DecodeTable},
    {"popc", &DecodeCount<Count>}, {"clz", &DecodeCount<LeadingZeros>},
    {"brev", &DecodeReverse},      {"mov", &DecodeMove},
};

}  // namespace

std::span<const Row> BitRows() { return kRows; }

}  // namespace gradientflow::cuda_ptx
