#include <type_traits>

#include "tests/cuda_ptx/decode.h"
#include "tests/cuda_ptx/lanes.h"

// Loads, stores and atomics: how they are decoded, and how values move between
// registers and memory. Which memory that is, and whether they may, is checked
// by the block that executes them.
namespace gradientflow::cuda_ptx {
namespace {

// T is the type in memory, R that of the register.
template <class T, class R>
void LoadEach(const Registers& r, Operand to, std::byte* const* addresses,
              std::uint32_t lanes) {
  R* d = r.At<R>(to);
  ForLanes(lanes, [=](unsigned l) {
    T value;
    __builtin_memcpy(&value, addresses[l], sizeof(T));
    d[l] = static_cast<R>(value);
  });
}

template <class T, class R>
void StoreEach(const Registers& r, Operand from, std::byte* const* addresses,
               std::uint32_t lanes) {
  const R* s = r.At<R>(from);
  ForLanes(lanes, [=](unsigned l) {
    const T value = static_cast<T>(s[l]);
    __builtin_memcpy(addresses[l], &value, sizeof(T));
  });
}

template <class T>
Move MoveOf(unsigned register_bytes, bool loads) {
  using H = std::uint16_t;
  using U = std::uint32_t;
  using L = std::uint64_t;
  if (register_bytes < sizeof(T)) return nullptr;
  switch (register_bytes) {
    case 1:  // A constant.
      return loads ? nullptr : &StoreEach<T, std::uint8_t>;
    case 2:
      return loads ? &LoadEach<T, H> : &StoreEach<T, H>;
    case 4:
      return loads ? &LoadEach<T, U> : &StoreEach<T, U>;
    case 8:
      return loads ? &LoadEach<T, L> : &StoreEach<T, L>;
    default:
      return nullptr;
  }
}

// Only the signs of integers matter: they are extended.
Move MoveFor(Type type, unsigned register_bytes, bool loads) {
  switch (type) {
    case Type::kS8:
      return MoveOf<std::int8_t>(register_bytes, loads);
    case Type::kS16:
      return MoveOf<std::int16_t>(register_bytes, loads);
    case Type::kS32:
      return MoveOf<std::int32_t>(register_bytes, loads);
    default:
      break;
  }
  switch (BytesOf(type)) {
    case 1:
      return MoveOf<std::uint8_t>(register_bytes, loads);
    case 2:
      return MoveOf<std::uint16_t>(register_bytes, loads);
    case 4:
      return MoveOf<std::uint32_t>(register_bytes, loads);
    default:
      return MoveOf<std::uint64_t>(register_bytes, loads);
  }
}

void TakeSpace(Line& line) {
  constexpr Space kSpaces[] = {Space::kGlobal, Space::kShared, Space::kParam};
  const int space = line.TakeOneOf({"global", "shared", "param"});
  line.out().access.space = space < 0 ? Space::kGeneric : kSpaces[space];
}

// Which caches keep what was read, and that others see it, is nothing to show
// where there is one memory.
void TakeHints(Line& line) {
  line.TakeOneOf({"nc", "volatile", "relaxed", "weak"});
  line.TakeOneOf({"cs", "cg", "ca", "wb", "lu"});
  line.TakeOneOf({"cta", "gpu", "sys"});
}

void DecodeAccess(Line& line, bool loads) {
  Instruction& out = line.out();
  out.kind = loads ? Kind::kLoad : Kind::kStore;
  const Type type = line.TakeType();
  TakeSpace(line);
  TakeHints(line);
  const int vector = line.TakeOneOf({"v2", "v4", "v8"});
  line.Expect(2);
  const std::vector<std::string> elements = line.Parts(loads ? 0 : 1);
  if (elements.size() != (vector < 0 ? 1U : 2U << vector)) {
    line.Fail("expected as many elements as the vector has");
  }
  line.Address(line.text(loads ? 1 : 0));
  out.access.bytes = BytesOf(type);
  out.access.count = static_cast<unsigned>(elements.size());
  for (std::size_t i = 0; i < elements.size() && i < 8; ++i) {
    Operand& operand = out.operands[i + 1];
    if (loads && elements[i] == "_") continue;
    operand = loads ? line.Write(elements[i], type, true)
                    : line.Read(elements[i], type, true);
    // All have registers of one size, or immediates of the type's own.
    out.move = MoveFor(type, operand.bytes, loads);
    if (out.move == nullptr) line.Fail("unknown for this type");
  }
}

void DecodeLoad(Line& line) { DecodeAccess(line, true); }
void DecodeStore(Line& line) { DecodeAccess(line, false); }

template <class T>
std::uint64_t AddTo(std::uint64_t old, std::uint64_t v) {
  return static_cast<T>(static_cast<T>(old) + static_cast<T>(v));
}
template <class T>
std::uint64_t GreaterOf(std::uint64_t old, std::uint64_t v) {
  return static_cast<T>(old) > static_cast<T>(v) ? old : v;
}
template <class T>
std::uint64_t LesserOf(std::uint64_t old, std::uint64_t v) {
  return static_cast<T>(old) < static_cast<T>(v) ? old : v;
}
std::uint64_t Replaced(std::uint64_t, std::uint64_t v) { return v; }
std::uint64_t OrWith(std::uint64_t old, std::uint64_t v) { return old | v; }
std::uint64_t AndWith(std::uint64_t old, std::uint64_t v) { return old & v; }
std::uint64_t XorWith(std::uint64_t old, std::uint64_t v) { return old ^ v; }

template <class T>
Update UpdateOf(int operation) {
  constexpr Update kUpdates[] = {&AddTo<T>, &GreaterOf<T>, &LesserOf<T>,
                                 &Replaced, &OrWith,       &AndWith,
                                 &XorWith};
  return operation < 0 ? nullptr : kUpdates[operation];
}

// red is an atom whose old value nobody wants.
void DecodeAtomic(Line& line, bool returns) {
  Instruction& out = line.out();
  out.kind = Kind::kAtomic;
  const Type type = line.TakeType();
  TakeSpace(line);
  line.TakeOneOf({"relaxed"});
  line.TakeOneOf({"cta", "gpu", "sys"});
  const int operation =
      line.TakeOneOf({"add", "max", "min", "exch", "or", "and", "xor"});
  line.Expect(returns ? 3 : 2);
  out.access.bytes = BytesOf(type);
  line.Address(line.text(returns ? 1 : 0));
  out.operands[1] = line.Read(line.text(returns ? 2 : 1), type);
  out.detail = returns && line.text(0) != "_" ? 1 : 0;
  if (out.detail != 0) out.operands[2] = line.Write(line.text(0), type);
  out.update = WithType(type, [operation](auto value) -> Update {
    using T = decltype(value);
    if constexpr (std::is_integral_v<T> && sizeof(T) >= 4) {
      return UpdateOf<T>(operation);
    }
    return nullptr;
  });
  if (out.update == nullptr) line.Fail("unknown atomic operation");
}
void DecodeAtom(Line& line) { DecodeAtomic(line, true); }
void DecodeReduction(Line& line) { DecodeAtomic(line, false); }

constexpr Row kRows[] = {{"ld", &DecodeLoad},
                         {"st", &DecodeStore},
                         {"atom", &DecodeAtom},
                         {"red", &DecodeReduction}};

}  // namespace

std::span<const Row> MemoryRows() { return kRows; }

}  // namespace gradientflow::cuda_ptx
