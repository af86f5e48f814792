#include <cstdint>

#include "benchmarks/kernels/kernel_case.h"

// The cases of kernels.h. Factors are chosen so that no number of launches
// leads to infinities.
namespace gradientflow::benchmarks {
namespace {

using kernels::ReduceOp;
using Flag = std::uint32_t;

constexpr auto kBF16 = DType::kBFloat16;
// A sum in float32 of the whole buffer, in another order.
constexpr double kFloatSum = 2e-3;
constexpr double kDoubleSum = 1e-9;

double Bytes(std::size_t n, std::size_t per_element) {
  return static_cast<double>(n) * static_cast<double>(per_element);
}

KernelCase Convert(std::size_t n, DType src, DType dst, bool settled) {
  return {"convert " + ShortName(src) + ">" + ShortName(dst) +
              (settled ? " settled" : ""),
          Bytes(n, SizeOf(src) * (settled ? 2 : 1) + SizeOf(dst)),
          {Normal(src, n, 0), Zeros(n * SizeOf(dst)), Zeros(sizeof(Flag)),
           Zeros(settled ? n * SizeOf(src) : 0)},
          [=](const Site& s) {
            return s.tables.elements.convert(
                {s.m[0], src, s.m[1], dst, settled ? s.m[3] : nullptr, n, 0.5F,
                 s.as<Flag>(2)},
                s.stream);
          }};
}

KernelCase Accumulate(std::size_t n, DType dst, DType src) {
  return {"accumulate " + ShortName(dst) + "+=" + ShortName(src),
          Bytes(n, 2 * SizeOf(dst) + SizeOf(src)),
          {Normal(dst, n, 0), Normal(src, n, 1), Zeros(sizeof(Flag))},
          [=](const Site& s) {
            return s.tables.host->accumulate(
                {s.m[0], dst, s.m[1], src, n, ReduceOp::kSum, 0.5F, 1,
                 s.as<Flag>(2)},
                s.stream);
          }};
}

// Four sources and one result.
KernelCase ReduceMany(std::size_t n, DType type) {
  return {"reduce_many 4 x " + ShortName(type),
          Bytes(n, 5 * SizeOf(type)),
          {Normal(type, n, 0), Normal(type, n, 1), Normal(type, n, 2),
           Normal(type, n, 3), Zeros(n * SizeOf(type)), Zeros(sizeof(Flag))},
          [=](const Site& s) {
            const void* const srcs[] = {s.m[0], s.m[1], s.m[2], s.m[3]};
            void* const dsts[] = {s.m[4]};
            return s.tables.elements.reduce_many(
                {srcs, 4, -1, type, dsts, 1, type, type, n, ReduceOp::kSum,
                 0.25F, s.as<Flag>(5)},
                s.stream);
          }};
}

// Two buffers are reduced and the result is stored to both, in place, as two
// ranks do in shared memory.
KernelCase ReduceToBoth(std::size_t n, DType type) {
  const bool mean = IsGradientType(type);
  return {"reduce_many 2 to 2 " + ShortName(type),
          Bytes(n, 4 * SizeOf(type)),
          {Normal(type, n, 0), Normal(type, n, 1), Zeros(sizeof(Flag))},
          [=](const Site& s) {
            const void* const srcs[] = {s.m[0], s.m[1]};
            void* const dsts[] = {s.m[0], s.m[1]};
            return s.tables.elements.reduce_many(
                {srcs, 2, -1, type, dsts, 2, type, type, n,
                 mean ? ReduceOp::kSum : ReduceOp::kMax, mean ? 0.5F : 1.0F,
                 s.as<Flag>(2)},
                s.stream);
          }};
}

KernelCase Residual(std::size_t n, DType type, bool send) {
  // Both are read; the gradients are written only if the run is sent.
  return {"residual " + ShortName(type) + (send ? " send" : " keep"),
          Bytes(n, SizeOf(type) * (send ? 2 : 1) + 2 * sizeof(float)),
          {Normal(type, n, 0), Normal(kF32, n, 1), Sums(kF32, 1, kFloatSum)},
          [=](const Site& s) {
            return s.tables.host->residual({s.m[0], type, s.as<float>(1), n,
                                            send, false, 0.9F, s.as<float>(2)},
                                           s.stream);
          }};
}

KernelCase L1Norm(std::size_t n, DType type) {
  return {"l1_norm " + ShortName(type),
          Bytes(n, SizeOf(type)),
          {Normal(type, n, 0), Sums(kF32, 1, kFloatSum)},
          [=](const Site& s) {
            return s.tables.host->l1_norm({s.m[0], type, n, 1, s.as<float>(1)},
                                          s.stream);
          }};
}

KernelCase SumSquares(std::size_t n, DType type) {
  return {"sum_squares " + ShortName(type),
          Bytes(n, SizeOf(type)),
          {Normal(type, n, 0), Sums(DType::kFloat64, 1, kDoubleSum)},
          [=](const Site& s) {
            return s.tables.host->sum_squares(
                {s.m[0], type, n, s.as<double>(1)}, s.stream);
          }};
}

KernelCase FindNonfinite(std::size_t n, DType type) {
  return {"find_nonfinite " + ShortName(type),
          Bytes(n, SizeOf(type)),
          {Normal(type, n, 0), Zeros(sizeof(Flag))},
          [=](const Site& s) {
            return s.tables.elements.find_nonfinite(
                {s.m[0], type, n, s.as<Flag>(1)}, s.stream);
          }};
}

KernelCase Sgd(std::size_t n, DType type) {
  return {"sgd " + ShortName(type),
          Bytes(n, 4 * sizeof(float) + SizeOf(type)),
          {Normal(kF32, n, 0), Normal(kF32, n, 1), Normal(type, n, 2)},
          [=](const Site& s) {
            return s.tables.host->sgd({s.as<float>(0), s.as<float>(1), s.m[2],
                                       type, n, 1e-3F, 0.9F, 1e-4F, 1, false},
                                      s.stream);
          }};
}

}  // namespace

KernelCases ElementCases(std::size_t n) {
  return {Convert(n, kF32, kF16, false), Convert(n, kF16, kF32, false),
          Convert(n, kF32, kF16, true), FindNonfinite(n, kF32),
          FindNonfinite(n, kF16)};
}

KernelCases DeviceCases(std::size_t n) {
  return {ReduceMany(n, kF32), ReduceMany(n, kF16)};
}

KernelCases HostCases(std::size_t n) {
  KernelCases made = {
      Convert(n, kF32, kBF16, false), Convert(n, kBF16, kF32, false),
      Convert(n, kF32, kBF16, true),  Accumulate(n, kF32, kF32),
      Accumulate(n, kF32, kF16),      Accumulate(n, kF16, kF16),
      Accumulate(n, kF32, kBF16),
  };
  for (const DType type : {kF32, kF16}) {
    made.insert(made.end(),
                {Residual(n, type, true), Residual(n, type, false),
                 L1Norm(n, type), SumSquares(n, type), Sgd(n, type)});
  }
  for (const DType type :
       {kF32, DType::kFloat64, DType::kInt64, DType::kInt8}) {
    // The same number of bytes for each type.
    made.push_back(ReduceToBoth(4 * n / SizeOf(type), type));
  }
  return made;
}

}  // namespace gradientflow::benchmarks
