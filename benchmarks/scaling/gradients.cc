#include "benchmarks/scaling/gradients.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "kernels/kernels.h"

namespace gradientflow::benchmarks {
namespace {

// Fits a core's cache; prime, so that chunks do not repeat.
constexpr std::size_t kTable = 131071;

void Convert(const void* src, DType src_type, void* dst, DType dst_type,
             std::size_t n) {
  kernels::CpuKernels().convert(
      {src, src_type, dst, dst_type, nullptr, n, 1, nullptr}, nullptr);
}

}  // namespace

Gradients::Gradients(DType dtype)
    : dtype_(dtype),
      element_bytes_(SizeOf(dtype)),
      values_(kTable),
      table_(kTable * element_bytes_) {
  std::mt19937_64 random(0x6772616473);
  std::normal_distribution<float> normal;
  for (float& value : values_) value = normal(random);
  std::vector<std::byte> rounded(kTable * SizeOf(DType::kFloat16));
  Convert(values_.data(), DType::kFloat32, rounded.data(), DType::kFloat16,
          kTable);
  Convert(rounded.data(), DType::kFloat16, values_.data(), DType::kFloat32,
          kTable);
  Convert(values_.data(), DType::kFloat32, table_.data(), dtype, kTable);
}

std::size_t Gradients::Shift(int rank, std::uint64_t step) {
  std::mt19937_64 random((step << 16) + static_cast<std::uint64_t>(rank));
  return random() % kTable;
}

float Gradients::Value(int rank, std::uint64_t step,
                       std::size_t element) const {
  return values_[(element + Shift(rank, step)) % kTable];
}

void Gradients::Fill(int rank, std::uint64_t step, BufferView pool,
                     bool add) const {
  std::size_t from = Shift(rank, step) * element_bytes_;
  for (std::size_t to = 0; to < pool.bytes;) {
    const std::size_t bytes = std::min(table_.size() - from, pool.bytes - to);
    if (add) {
      kernels::CpuKernels().accumulate(
          {pool.data + to, dtype_, table_.data() + from, dtype_,
           bytes / element_bytes_, kernels::ReduceOp::kSum, 1, 1, nullptr},
          nullptr);
    } else {
      std::memcpy(pool.data + to, table_.data() + from, bytes);
    }
    to += bytes;
    from = 0;
  }
}

float ElementAt(ConstBufferView pool, DType dtype, std::size_t element) {
  float value = 0;
  Convert(pool.data + element * SizeOf(dtype), dtype, &value, DType::kFloat32,
          1);
  return value;
}

}  // namespace gradientflow::benchmarks
