#include "tests/kernels/oracle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define GRADIENTFLOW_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GRADIENTFLOW_ASAN 1
#endif
#endif
#ifdef GRADIENTFLOW_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace gradientflow::kernels::testing {
namespace {

constexpr std::size_t kCanaryBytes = 128;
constexpr std::uint8_t kCanary = 0xA5;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A binary format: significant bits, and the exponent of its least normal.
struct Format {
  int precision;
  int min_exponent;
  int max_exponent;
};

Format FormatOf(DType type) {
  switch (type) {
    case DType::kFloat16:
      return {11, -14, 15};
    case DType::kBFloat16:
      return {8, -126, 127};
    case DType::kFloat32:
      return {24, -126, 127};
    default:
      return {53, -1022, 1023};
  }
}

}  // namespace

int PrecisionOf(DType type) { return FormatOf(type).precision; }

namespace {

// The fields of a float64, from which the others are made: libm's functions for
// them would be most of what the tests of kernels take.
constexpr int kBias64 = 1023;
constexpr std::uint64_t kMantissa64 = (std::uint64_t{1} << 52) - 1;

// floor(log2(|value|)). REQUIRES that the value is normal, or far below all
// normal numbers of the format that it is rounded to.
int ExponentOf(double value) {
  return static_cast<int>(std::bit_cast<std::uint64_t>(value) >> 52 & 0x7FF) -
         kBias64;
}

// 2^exponent, a normal number.
double PowerOfTwo(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + kBias64)
                               << 52);
}

// The nearest whole number, ties to even, of |value| < 2^51: from 2^52 on the
// last place of a float64 is one.
double NearestWhole(double value) {
  const double far = std::copysign(0x1p52, value);
  return std::copysign(value + far - far, value);
}

// The stored fields of a value that the format holds exactly.
std::uint64_t Encode(DType type, double value) {
  const Format format = FormatOf(type);
  const int mantissa_bits = format.precision - 1;
  const int bias = format.max_exponent;
  const int total_bits = static_cast<int>(SizeOf(type)) * 8;
  std::uint64_t bits = 0;
  if (std::isnan(value)) {
    bits = ((std::uint64_t{2} * bias + 1) * 2 + 1) << (mantissa_bits - 1);
  } else if (std::isinf(value)) {
    bits = (std::uint64_t{2} * bias + 1) << mantissa_bits;
  } else if (value != 0 && ExponentOf(value) >= format.min_exponent) {
    const std::uint64_t mantissa =
        std::bit_cast<std::uint64_t>(value) & kMantissa64;
    bits = static_cast<std::uint64_t>(ExponentOf(value) + bias)
               << mantissa_bits |
           mantissa >> (52 - mantissa_bits);
  } else if (type == DType::kFloat64) {
    return std::bit_cast<std::uint64_t>(value);
  } else {
    bits = static_cast<std::uint64_t>(
        std::fabs(value) * PowerOfTwo(mantissa_bits - format.min_exponent));
  }
  if (std::signbit(value)) bits |= std::uint64_t{1} << (total_bits - 1);
  return bits;
}

double Decode(DType type, std::uint64_t bits) {
  if (type == DType::kFloat64) return std::bit_cast<double>(bits);
  const Format format = FormatOf(type);
  const int mantissa_bits = format.precision - 1;
  const int total_bits = static_cast<int>(SizeOf(type)) * 8;
  const bool negative = (bits >> (total_bits - 1) & 1) != 0;
  const auto mantissa =
      static_cast<double>(bits & ((std::uint64_t{1} << mantissa_bits) - 1));
  const int field =
      static_cast<int>(bits >> mantissa_bits & (2u * format.max_exponent + 1));
  double value;
  if (field == 2 * format.max_exponent + 1) {
    value = mantissa != 0 ? std::nan("") : kInfinity;
  } else if (field == 0) {
    value = mantissa * PowerOfTwo(format.min_exponent - mantissa_bits);
  } else {
    value = (mantissa + PowerOfTwo(mantissa_bits)) *
            PowerOfTwo(field - format.max_exponent - mantissa_bits);
  }
  return negative ? -value : value;
}

// The value of an integer of up to 64 bits, as two's complement if it is
// signed.
std::int64_t IntegerValue(DType type, std::uint64_t bits) {
  if (type == DType::kUInt8) return static_cast<std::int64_t>(bits & 0xFF);
  const int unused = 64 - static_cast<int>(SizeOf(type)) * 8;
  return static_cast<std::int64_t>(bits << unused) >> unused;
}

}  // namespace

double RoundTo(DType type, double value) {
  const Format format = FormatOf(type);
  if (type == DType::kFloat64 || !std::isfinite(value) || value == 0) {
    return value;
  }
  const int exponent = std::max(ExponentOf(value), format.min_exponent);
  if (exponent > format.max_exponent) return std::copysign(kInfinity, value);
  const int unit = exponent - (format.precision - 1);
  const double rounded =
      NearestWhole(value * PowerOfTwo(-unit)) * PowerOfTwo(unit);
  if (std::fabs(rounded) >= PowerOfTwo(format.max_exponent + 1)) {
    return std::copysign(kInfinity, value);
  }
  return rounded;
}

Elements::Elements(DType type, std::size_t n, std::size_t shift)
    : type_(type),
      n_(n),
      begin_(kCanaryBytes + shift * SizeOf(type)),
      total_(begin_ + n * SizeOf(type) + kCanaryBytes),
      bytes_(static_cast<std::uint8_t*>(AllocateTestMemory(total_))) {
  std::memset(bytes_, kCanary, total_);
  Guard(true);
}

Elements::Elements(const Elements& other)
    : Elements(other.type_, other.n_,
               reinterpret_cast<std::uintptr_t>(other.data()) % 64 /
                   SizeOf(other.type_)) {
  if (n_ > 0) std::memcpy(data(), other.data(), n_ * SizeOf(type_));
}

Elements::~Elements() {
  Guard(false);
  FreeTestMemory(bytes_, total_);
}

void Elements::Guard(bool on) const {
#ifdef GRADIENTFLOW_ASAN
  const std::size_t end = begin_ + n_ * SizeOf(type_);
  const std::size_t head = (begin_ - 8) / 8 * 8;
  if (on) {
    __asan_poison_memory_region(bytes_, head);
    __asan_poison_memory_region(bytes_ + end, total_ - end);
  } else {
    __asan_unpoison_memory_region(bytes_, total_);
  }
#else
  static_cast<void>(on);
#endif
}

std::uint64_t Elements::Bits(std::size_t i) const {
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes_ + begin_ + i * SizeOf(type_), SizeOf(type_));
  return bits;
}

void Elements::SetBits(std::size_t i, std::uint64_t bits) {
  std::memcpy(bytes_ + begin_ + i * SizeOf(type_), &bits, SizeOf(type_));
}

double Elements::Get(std::size_t i) const {
  const std::uint64_t bits = Bits(i);
  if (IsFloat(type_)) return Decode(type_, bits);
  return static_cast<double>(IntegerValue(type_, bits));
}

void Elements::Set(std::size_t i, double value) {
  if (IsFloat(type_)) {
    SetBits(i, Encode(type_, RoundTo(type_, value)));
  } else {
    SetBits(i, static_cast<std::uint64_t>(static_cast<std::int64_t>(value)));
  }
}

void Elements::Fill(std::mt19937_64& random) {
  for (std::size_t i = 0; i < n_; ++i) {
    const std::uint64_t bits = random();
    if (!IsFloat(type_)) {
      SetBits(i, bits);
      continue;
    }
    // Its upper half between -2 and 2; what it is to be, from the lower one.
    double value =
        static_cast<double>(static_cast<std::int64_t>(bits) >> 32) * 0x1p-30;
    const std::uint64_t k = (bits & 0xFFFFFFFF) % 10;
    if (k == 0) value *= 1e-6;
    if (k == 1) value *= 100;
    if (k == 2) value = std::copysign(0.0, value);
    Set(i, value);
  }
}

bool Elements::SameBits(const Elements& other) const {
  return n_ == other.n_ && type_ == other.type_ &&
         (n_ == 0 ||
          std::memcmp(data(), other.data(), n_ * SizeOf(type_)) == 0);
}

bool Elements::CanariesIntact() const {
  Guard(false);
  const auto is_canary = [](std::uint8_t byte) { return byte == kCanary; };
  const std::uint8_t* begin = bytes_ + begin_;
  const std::uint8_t* end = begin + n_ * SizeOf(type_);
  const bool intact =
      std::all_of<const std::uint8_t*>(bytes_, begin, is_canary) &&
      std::all_of<const std::uint8_t*>(end, bytes_ + total_, is_canary);
  Guard(true);
  return intact;
}

::testing::AssertionResult Is(const Elements& elements, std::size_t i,
                              double expected) {
  const double seen = elements.Get(i);
  bool same;
  if (std::isnan(expected)) {
    const int mantissa_bits = FormatOf(elements.type()).precision - 1;
    const bool quiet = (elements.Bits(i) >> (mantissa_bits - 1) & 1) != 0;
    same = std::isnan(seen) && quiet;
  } else {
    same = seen == expected && std::signbit(seen) == std::signbit(expected);
  }
  if (same) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "element " << i << " of " << elements.size() << ": expected "
         << expected << ", seen " << seen << " (bits 0x" << std::hex
         << elements.Bits(i) << ")";
}

double Combine(ReduceOp op, DType type, double a, double b) {
  const DType arithmetic = IsGradientType(type) ? DType::kFloat32 : type;
  if (op == ReduceOp::kSum) return RoundTo(arithmetic, a + b);
  if (op == ReduceOp::kProduct) return RoundTo(arithmetic, a * b);
  if (std::isnan(a) || std::isnan(b)) return std::nan("");
  if (op == ReduceOp::kMin) return a < b ? a : b;
  return a > b ? a : b;
}

std::uint64_t CombineBits(ReduceOp op, DType type, std::uint64_t a,
                          std::uint64_t b) {
  const std::uint64_t mask = ~std::uint64_t{0} >> (64 - SizeOf(type) * 8);
  const bool less = IntegerValue(type, a) < IntegerValue(type, b);
  switch (op) {
    case ReduceOp::kSum:
      return (a + b) & mask;
    case ReduceOp::kMin:
      return less ? a : b;
    case ReduceOp::kMax:
      return less ? b : a;
    case ReduceOp::kProduct:
      return (a * b) & mask;
    case ReduceOp::kBitAnd:
      return a & b;
    case ReduceOp::kBitOr:
      return a | b;
    case ReduceOp::kBitXor:
      return a ^ b;
  }
  ADD_FAILURE() << "operation " << static_cast<int>(op);
  return 0;
}

bool IsNonFinite(const Elements& elements, std::size_t i) {
  return !std::isfinite(elements.Get(i));
}

double FloatUlps(float seen, double exact) {
  const double unit =
      exact == 0 ? std::ldexp(1.0, -149)
                 : std::ldexp(1.0, std::max(std::ilogb(exact), -126) - 23);
  return std::fabs(static_cast<double>(seen) - exact) / unit;
}

double NormUlpBound(std::size_t n) {
  // Half a unit for each addition on the path of one element: into the slot of
  // its lane (at most 128 per piece), over the pieces (4096 elements at least),
  // across slots and lanes, and into *norm.
  const auto elements = static_cast<double>(n);
  return 0.5 * (std::min(elements, 128.0) + elements / 4096) + 8;
}

double SquaresInOrder(const Elements& elements, std::size_t begin,
                      std::size_t n) {
  std::vector<double> totals(1024);
  for (std::size_t block = 0; block * 512 < n; ++block) {
    std::vector<double> lanes(32);
    const std::size_t end = std::min<std::size_t>(n, (block + 1) * 512);
    for (std::size_t i = block * 512; i < end; ++i) {
      const double value = elements.Get(begin + i);
      lanes[i % 32] += value * value;
    }
    for (const std::size_t bit : {4, 3, 2, 1, 0}) {
      for (std::size_t l = 0; l < lanes.size(); ++l) {
        if ((l >> bit & 1) == 0) lanes[l] += lanes[l | std::size_t{1} << bit];
      }
    }
    totals[block % 1024] += lanes[0];
  }
  for (std::size_t bit = 0; bit < 10; ++bit) {
    for (std::size_t t = 0; t < totals.size(); ++t) {
      if ((t >> bit & 1) == 0) totals[t] += totals[t | std::size_t{1} << bit];
    }
  }
  return totals[0];
}

std::vector<const CpuKernelTable*> CpuTables() {
  std::vector<const CpuKernelTable*> tables;
  for (auto table = AllCpuKernels(); *table != nullptr; ++table) {
    tables.push_back(*table);
  }
  return tables;
}

std::string NameOf(const KernelTable& table) {
  std::string name = table.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace gradientflow::kernels::testing
