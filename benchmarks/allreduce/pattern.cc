#include "benchmarks/allreduce/pattern.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/kernels.h"

namespace gradientflow::benchmarks {
namespace {

constexpr std::size_t kPeriod = 1009;

template <typename T>
std::vector<std::byte> As(const std::vector<double>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const T value = static_cast<T>(values[i]);
    std::memcpy(&bytes[i * sizeof(T)], &value, sizeof(T));
  }
  return bytes;
}

// Beyond what multiplying by a rounded 1/n does to a whole number.
template <typename T>
bool Far(const std::byte* seen, const std::byte* expected) {
  T a;
  T b;
  std::memcpy(&a, seen, sizeof(T));
  std::memcpy(&b, expected, sizeof(T));
  constexpr T kUlp = std::numeric_limits<float>::epsilon();
  return !(std::abs(a - b) <= kUlp * std::abs(b));
}

// Of whole numbers, as integers of any width see it.
double Bitwise(ReduceOp op, double a, double b) {
  const auto x = static_cast<std::int64_t>(a);
  const auto y = static_cast<std::int64_t>(b);
  if (op == ReduceOp::kBitAnd) return static_cast<double>(x & y);
  if (op == ReduceOp::kBitOr) return static_cast<double>(x | y);
  return static_cast<double>(x ^ y);
}

}  // namespace

Pattern::Pattern(DType dtype, ReduceOp op, int ranks)
    : dtype_(dtype), op_(op), ranks_(ranks) {}

double Pattern::Value(int rank, std::size_t i) const {
  const auto r = static_cast<std::size_t>(rank);
  const auto ranks = static_cast<std::size_t>(ranks_);
  const std::size_t mixed = (i * i + 31 * i + 7 * r * i + 13 * r) % 11;
  switch (op_) {
    case ReduceOp::kProduct:
      return i % (ranks + 1) == r ? 3 : 1;
    case ReduceOp::kMean:
      // Not negative: what rounding leaves of 1 - 1 is not 0.
      return ranks_ * static_cast<double>(mixed % 3);
    default:
      return static_cast<double>(mixed) - (dtype_ == DType::kUInt8 ? 0 : 5);
  }
}

double Pattern::Expected(std::size_t i) const {
  double result = Value(0, i);
  for (int rank = 1; rank < ranks_; ++rank) {
    const double value = Value(rank, i);
    switch (op_) {
      case ReduceOp::kSum:
      case ReduceOp::kMean:
        result += value;
        break;
      case ReduceOp::kMin:
        result = std::min(result, value);
        break;
      case ReduceOp::kMax:
        result = std::max(result, value);
        break;
      case ReduceOp::kProduct:
        result *= value;
        break;
      case ReduceOp::kBitAnd:
      case ReduceOp::kBitOr:
      case ReduceOp::kBitXor:
        result = Bitwise(op_, result, value);
        break;
    }
  }
  return op_ == ReduceOp::kMean ? result / ranks_ : result;
}

std::vector<std::byte> Pattern::Period(
    const std::vector<double>& values) const {
  switch (dtype_) {
    case DType::kFloat64:
      return As<double>(values);
    case DType::kInt8:
      return As<std::int8_t>(values);
    case DType::kInt32:
      return As<std::int32_t>(values);
    case DType::kInt64:
      return As<std::int64_t>(values);
    case DType::kUInt8:
      return As<std::uint8_t>(values);
    case DType::kFloat32:
      return As<float>(values);
    case DType::kFloat16:
    case DType::kBFloat16:
      break;
  }
  const std::vector<std::byte> floats = As<float>(values);
  std::vector<std::byte> halves(values.size() * SizeOf(dtype_));
  kernels::CpuKernels().convert({floats.data(), DType::kFloat32, halves.data(),
                                 dtype_, nullptr, values.size(), 1.0F, nullptr},
                                nullptr);
  return halves;
}

bool Pattern::Differs(const std::byte* seen, const std::byte* expected) const {
  if (op_ == ReduceOp::kMean && dtype_ == DType::kFloat32) {
    return Far<float>(seen, expected);
  }
  if (op_ == ReduceOp::kMean && dtype_ == DType::kFloat64) {
    return Far<double>(seen, expected);
  }
  return std::memcmp(seen, expected, SizeOf(dtype_)) != 0;
}

void Pattern::Fill(int rank, std::size_t count, void* data) const {
  std::vector<double> values;
  for (std::size_t i = 0; i < kPeriod; ++i) values.push_back(Value(rank, i));
  const std::vector<std::byte> period = Period(values);
  const std::size_t bytes = count * SizeOf(dtype_);
  auto* const at = static_cast<std::byte*>(data);
  for (std::size_t done = 0; done < bytes; done += period.size()) {
    std::memcpy(at + done, period.data(),
                std::min(period.size(), bytes - done));
  }
}

std::uint64_t Pattern::CountWrong(std::size_t count, const void* data) const {
  std::vector<double> values;
  for (std::size_t i = 0; i < kPeriod; ++i) values.push_back(Expected(i));
  const std::vector<std::byte> period = Period(values);
  const std::size_t element = SizeOf(dtype_);
  const std::size_t bytes = count * element;
  const auto* const at = static_cast<const std::byte*>(data);
  std::uint64_t wrong = 0;
  for (std::size_t done = 0; done < bytes; done += period.size()) {
    const std::size_t run = std::min(period.size(), bytes - done);
    if (std::memcmp(at + done, period.data(), run) == 0) continue;
    for (std::size_t i = 0; i < run; i += element) {
      wrong += Differs(at + done + i, &period[i]) ? 1 : 0;
    }
  }
  return wrong;
}

}  // namespace gradientflow::benchmarks
