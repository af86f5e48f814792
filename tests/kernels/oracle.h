#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "tests/kernels/backend.h"

// The oracle for the kernels: a second implementation of the number formats, in
// float64, and buffers that detect writes beyond their borders.
namespace gradientflow::kernels::testing {

inline constexpr DType kGradientTypes[] = {DType::kFloat32, DType::kFloat16,
                                           DType::kBFloat16};
inline constexpr DType kIntegerTypes[] = {DType::kInt8, DType::kInt32,
                                          DType::kInt64, DType::kUInt8};
inline constexpr DType kPlainTypes[] = {
    DType::kFloat64, DType::kInt8, DType::kInt32, DType::kInt64, DType::kUInt8};
inline constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin,
                                    ReduceOp::kMax, ReduceOp::kProduct};
inline constexpr ReduceOp kBitwiseOps[] = {ReduceOp::kBitAnd, ReduceOp::kBitOr,
                                           ReduceOp::kBitXor};
inline constexpr ReduceOp kIntegerOps[] = {
    ReduceOp::kSum,    ReduceOp::kMin,   ReduceOp::kMax,   ReduceOp::kProduct,
    ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor};

// 0, 1, around one vector and one unrolled loop of 8 or 16 lanes, odd, prime.
inline constexpr std::size_t kSizes[] = {0,  1,  7,  8,  9,  15,  16,  17,
                                         31, 33, 63, 64, 65, 129, 250, 1009};

// The significant bits of a floating type.
int PrecisionOf(DType type);

// `value` rounded once, to nearest even, to a floating type.
double RoundTo(DType type, double value);

// Elements with `kCanaryBytes` of canary before and after them, `shift`
// elements off a multiple of 64 bytes, in memory of the table under test. Under
// AddressSanitizer reading the canaries is an error, too.
class Elements {
 public:
  Elements(DType type, std::size_t n, std::size_t shift = 0);
  ~Elements();
  Elements(const Elements& other);
  Elements& operator=(const Elements&) = delete;

  DType type() const { return type_; }
  std::size_t size() const { return n_; }
  void* data() { return bytes_ + begin_; }
  const void* data() const { return bytes_ + begin_; }

  // The exact value of the element (except for kInt64 beyond 2^53).
  double Get(std::size_t i) const;
  // Stores `value` rounded by RoundTo, or cast to the integer type.
  void Set(std::size_t i, double value);
  std::uint64_t Bits(std::size_t i) const;
  void SetBits(std::size_t i, std::uint64_t bits);

  // Random values of about 1, some of them tiny, large, zero or negative; for
  // integers any bits.
  void Fill(std::mt19937_64& random);

  bool SameBits(const Elements& other) const;
  // Whether nothing was written beside the elements.
  bool CanariesIntact() const;

 private:
  void Guard(bool on) const;

  DType type_;
  std::size_t n_;
  std::size_t begin_;  // Bytes before the first element.
  std::size_t total_;
  std::uint8_t* bytes_;
};

// One value in memory of the table under test, for results of kernels.
template <typename T>
class Scalar {
 public:
  explicit Scalar(T value = {})
      : value_(static_cast<T*>(AllocateTestMemory(sizeof(T)))) {
    *value_ = value;
  }
  ~Scalar() { FreeTestMemory(value_, sizeof(T)); }
  Scalar(const Scalar&) = delete;
  Scalar& operator=(const Scalar&) = delete;

  T* get() { return value_; }
  T operator*() const { return *value_; }

 private:
  T* value_;
};

// Whether element i is `expected` bit for bit; any quiet NaN is a NaN.
::testing::AssertionResult Is(const Elements& elements, std::size_t i,
                              double expected);

// `a` op `b` in the arithmetic of `type`, which is float32 for the gradient
// types, for sums, products, minima and maxima.
double Combine(ReduceOp op, DType type, double a, double b);

// `a` op `b` for an integer type, of elements' Bits().
std::uint64_t CombineBits(ReduceOp op, DType type, std::uint64_t a,
                          std::uint64_t b);

// Whether one element, as a floating value, is an infinity or a NaN.
bool IsNonFinite(const Elements& elements, std::size_t i);

// Distance of `seen` from `exact` in units of the last place of a float32.
double FloatUlps(float seen, double exact);

// The error in units that a kernel's float32 sum of n magnitudes may have:
// lanes are summed in pieces of at most 8192 elements, then the pieces.
double NormUlpBound(std::size_t n);

// The sum of the squares of [begin, begin + n), in the order of SumSquaresArgs.
double SquaresInOrder(const Elements& elements, std::size_t begin,
                      std::size_t n);

// A table whose calls are done when they return.
class SynchronousTable {
 public:
  explicit SynchronousTable(const KernelTable& table) : table_(table) {}

  int convert(const ConvertArgs& args, void* stream) const {
    return Wait(table_.convert, args, stream);
  }
  int reduce_many(const ReduceManyArgs& args, void* stream) const {
    return Wait(table_.reduce_many, args, stream);
  }
  int find_nonfinite(const FindNonfiniteArgs& args, void* stream) const {
    return Wait(table_.find_nonfinite, args, stream);
  }

 private:
  template <typename Args>
  static int Wait(int (*call)(const Args&, void*), const Args& args,
                  void* stream) {
    BeforeLaunch();
    const int rc = call(args, stream);
    AfterLaunch();
    return rc;
  }

  const KernelTable& table_;
};

// A test that runs once for every table of the backend.
class EveryTable : public ::testing::TestWithParam<const KernelTable*> {
 protected:
  SynchronousTable kernels() const { return SynchronousTable(*GetParam()); }
  std::mt19937_64 random_{20190215};
};

// Every table that this CPU can run, the scalar one first.
std::vector<const CpuKernelTable*> CpuTables();

// A test that runs once for every one of them: of a kernel that only the host's
// memory has.
class EveryCpuTable : public ::testing::TestWithParam<const CpuKernelTable*> {
 protected:
  const CpuKernelTable& kernels() const { return *GetParam(); }
  std::mt19937_64 random_{20190215};
};

std::string NameOf(const KernelTable& table);

#define GRADIENTFLOW_FOR_EVERY(tables, Suite)                          \
  INSTANTIATE_TEST_SUITE_P(                                            \
      Tables, Suite,                                                   \
      ::testing::ValuesIn(::gradientflow::kernels::testing::tables()), \
      [](const auto& table) {                                          \
        return ::gradientflow::kernels::testing::NameOf(*table.param); \
      })
#define GRADIENTFLOW_FOR_EVERY_TABLE(Suite) \
  GRADIENTFLOW_FOR_EVERY(Tables, Suite)
#define GRADIENTFLOW_FOR_EVERY_CPU_TABLE(Suite) \
  GRADIENTFLOW_FOR_EVERY(CpuTables, Suite)

}  // namespace gradientflow::kernels::testing
