#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.h"

// What the kernels are checked against: number formats written down a second
// time, in float64, and buffers that notice a step over their borders.
namespace gradientflow::kernels::testing {

inline constexpr DType kGradientTypes[] = {DType::kFloat32, DType::kFloat16,
                                           DType::kBFloat16};
inline constexpr DType kPlainTypes[] = {DType::kFloat64, DType::kInt8,
                                        DType::kInt32, DType::kInt64};
inline constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin,
                                    ReduceOp::kMax, ReduceOp::kProduct};

// 0, 1, around one vector and one unrolled loop of 8 or 16 lanes, odd, prime.
inline constexpr std::size_t kSizes[] = {0,  1,  7,  8,  9,  15,  16,  17,
                                         31, 33, 63, 64, 65, 129, 250, 1009};

// `value` rounded once, to nearest even, to a floating type.
double RoundTo(DType type, double value);

// Elements with `kCanaryBytes` of canary before and after them, starting
// `shift` elements off a multiple of 64 bytes. Under AddressSanitizer the
// canaries may not be read either.
class Elements {
 public:
  Elements(DType type, std::size_t n, std::size_t shift = 0);
  ~Elements();
  Elements(const Elements& other);
  Elements& operator=(const Elements&) = delete;

  DType type() const { return type_; }
  std::size_t size() const { return n_; }
  void* data() { return bytes_.data() + begin_; }
  const void* data() const { return bytes_.data() + begin_; }

  // The element's exact value (not for kInt64 beyond 2^53).
  double Get(std::size_t i) const;
  // Stores `value` rounded by RoundTo, or cast to the integer type.
  void Set(std::size_t i, double value);
  std::uint64_t Bits(std::size_t i) const;
  void SetBits(std::size_t i, std::uint64_t bits);

  // Random values of about 1, some of them tiny, large, zero or negative; for
  // integers any bits.
  void Fill(std::mt19937_64& random);

  bool SameBits(const Elements& other) const;
  // Whether nothing was written next to the elements.
  bool CanariesIntact() const;

 private:
  void Guard(bool on) const;

  DType type_;
  std::size_t n_;
  std::vector<std::uint8_t> bytes_;
  std::size_t begin_;
};

// Whether element i is `expected` bit for bit; any quiet NaN is a NaN.
::testing::AssertionResult Is(const Elements& elements, std::size_t i,
                              double expected);

// `a` op `b` in the arithmetic of `type`: float32 for the gradient types.
double Combine(ReduceOp op, DType type, double a, double b);

// Whether one element, as a floating value, is an infinity or a NaN.
bool IsNonFinite(const Elements& elements, std::size_t i);

// Distance of `seen` from `exact` in units of the last place of a float32.
double FloatUlps(float seen, double exact);

// The units that a kernel's float32 sum of n magnitudes may be off by: lanes
// are summed in pieces of at most 8192 elements, then the pieces.
double NormUlpBound(std::size_t n);

// A test that runs once for every table of this CPU.
class EveryTable : public ::testing::TestWithParam<const KernelTable*> {
 protected:
  const KernelTable& kernels() const { return *GetParam(); }
  std::mt19937_64 random_{20190215};
};

std::vector<const KernelTable*> Tables();
std::string TableName(const ::testing::TestParamInfo<const KernelTable*>& info);

#define GRADIENTFLOW_FOR_EVERY_TABLE(Suite)                            \
  INSTANTIATE_TEST_SUITE_P(                                            \
      Cpu, Suite,                                                      \
      ::testing::ValuesIn(::gradientflow::kernels::testing::Tables()), \
      ::gradientflow::kernels::testing::TableName)

}  // namespace gradientflow::kernels::testing
