#include <utility>

#include "benchmarks/gpu/kernel_case.h"
#include "benchmarks/scaling/gradients.h"

// The cases of kernels.h. Factors are such that no number of launches leads to
// infinities.
namespace gradientflow::benchmarks {
namespace {

using kernels::ReduceOp;

constexpr auto kF32 = DType::kFloat32;
constexpr auto kF16 = DType::kFloat16;
// A sum in float32 of the whole buffer, in another order.
constexpr double kFloatSum = 2e-3;
constexpr double kDoubleSum = 1e-9;

std::string Short(DType type) { return type == kF16 ? "f16" : "f32"; }

double Bytes(std::size_t n, std::size_t per_element) {
  return static_cast<double>(n) * static_cast<double>(per_element);
}

KernelCase Convert(std::size_t n, DType src, DType dst, bool settled) {
  KernelCase made;
  made.name =
      "convert " + Short(src) + ">" + Short(dst) + (settled ? " settled" : "");
  made.bytes = Bytes(n, SizeOf(src) * (settled ? 2 : 1) + SizeOf(dst));
  made.AddNormal(src, n);
  made.AddZeros(n * SizeOf(dst));
  made.AddZeros(sizeof(std::uint32_t));
  if (settled) made.AddZeros(n * SizeOf(src));
  made.launch = [=](const KernelTables& tables, const KernelCase::Memory& m,
                    void* stream) {
    kernels::ConvertArgs args{};
    args.src = m[0];
    args.src_type = src;
    args.dst = m[1];
    args.dst_type = dst;
    args.settled = settled ? m[3] : nullptr;
    args.n = n;
    args.scale = 0.5F;
    args.nonfinite = reinterpret_cast<std::uint32_t*>(m[2]);
    return tables.elements.convert(args, stream);
  };
  return made;
}

KernelCase Accumulate(std::size_t n, DType dst, DType src) {
  KernelCase made;
  made.name = "accumulate " + Short(dst) + "+=" + Short(src);
  made.bytes = Bytes(n, 2 * SizeOf(dst) + SizeOf(src));
  made.AddNormal(dst, n);
  made.AddNormal(src, n);
  made.AddZeros(sizeof(std::uint32_t));
  made.launch = [=](const KernelTables& tables, const KernelCase::Memory& m,
                    void* stream) {
    kernels::AccumulateArgs args{};
    args.dst = m[0];
    args.dst_type = dst;
    args.src = m[1];
    args.src_type = src;
    args.n = n;
    args.op = ReduceOp::kSum;
    args.dst_scale = 0.5F;
    args.out_scale = 1;
    args.nonfinite = reinterpret_cast<std::uint32_t*>(m[2]);
    return tables.elements.accumulate(args, stream);
  };
  return made;
}

KernelCase ReduceMany(std::size_t n, DType type) {
  constexpr int kSources = 4;
  KernelCase made;
  made.name = "reduce_many 4 x " + Short(type);
  made.bytes = Bytes(n, (kSources + 1) * SizeOf(type));
  for (int s = 0; s < kSources; ++s) made.AddNormal(type, n);
  made.AddZeros(n * SizeOf(type));
  made.AddZeros(sizeof(std::uint32_t));
  made.launch = [=](const KernelTables& tables, const KernelCase::Memory& m,
                    void* stream) {
    const void* const srcs[kSources] = {m[0], m[1], m[2], m[3]};
    void* const dsts[1] = {m[4]};
    kernels::ReduceManyArgs args{};
    args.srcs = srcs;
    args.sources = kSources;
    args.own = -1;
    args.src_type = type;
    args.dsts = dsts;
    args.dests = 1;
    args.dst_type = args.round_type = type;
    args.n = n;
    args.op = ReduceOp::kSum;
    args.scale = 0.25F;
    args.nonfinite = reinterpret_cast<std::uint32_t*>(m[5]);
    return tables.elements.reduce_many(args, stream);
  };
  return made;
}

KernelCase Residual(std::size_t n, DType type, bool send) {
  KernelCase made;
  made.name = "residual " + Short(type) + (send ? " send" : " keep");
  // Both are read; of the gradients only what is sent is written.
  made.bytes = Bytes(n, SizeOf(type) * (send ? 2 : 1) + 2 * sizeof(float));
  made.AddNormal(type, n);
  made.AddNormal(kF32, n);
  made.AddZeros(sizeof(float));
  made.buffers.back().tolerance = kFloatSum;
  made.launch = [=](const KernelTables& tables, const KernelCase::Memory& m,
                    void* stream) {
    kernels::ResidualArgs args{};
    args.grads = m[0];
    args.type = type;
    args.residual = reinterpret_cast<float*>(m[1]);
    args.n = n;
    args.send = send;
    args.keep_factor = 0.9F;
    args.norm = reinterpret_cast<float*>(m[2]);
    return tables.elements.residual(args, stream);
  };
  return made;
}

KernelCase L1Norm(std::size_t n, DType type) {
  KernelCase made;
  made.name = "l1_norm " + Short(type);
  made.bytes = Bytes(n, SizeOf(type));
  made.AddNormal(type, n);
  made.AddZeros(sizeof(float));
  made.buffers.back().tolerance = kFloatSum;
  made.launch = [=](const KernelTables& tables, const KernelCase::Memory& m,
                    void* stream) {
    kernels::L1NormArgs args{};
    args.src = m[0];
    args.type = type;
    args.n = n;
    args.scale = 1;
    args.norm = reinterpret_cast<float*>(m[1]);
    return tables.elements.l1_norm(args, stream);
  };
  return made;
}

KernelCase SumSquares(std::size_t n, DType type) {
  KernelCase made;
  made.name = "sum_squares " + Short(type);
  made.bytes = Bytes(n, SizeOf(type));
  made.AddNormal(type, n);
  made.AddZeros(sizeof(double));
  made.buffers.back().tolerance = kDoubleSum;
  made.buffers.back().type = DType::kFloat64;
  made.launch = [=](const KernelTables& tables, const KernelCase::Memory& m,
                    void* stream) {
    kernels::SumSquaresArgs args{};
    args.src = m[0];
    args.type = type;
    args.n = n;
    args.sum = reinterpret_cast<double*>(m[1]);
    return tables.elements.sum_squares(args, stream);
  };
  return made;
}

KernelCase FindNonfinite(std::size_t n, DType type) {
  KernelCase made;
  made.name = "find_nonfinite " + Short(type);
  made.bytes = Bytes(n, SizeOf(type));
  made.AddNormal(type, n);
  made.AddZeros(sizeof(std::uint32_t));
  made.launch = [=](const KernelTables& tables, const KernelCase::Memory& m,
                    void* stream) {
    return tables.elements.find_nonfinite(
        {m[0], type, n, reinterpret_cast<std::uint32_t*>(m[1])}, stream);
  };
  return made;
}

KernelCase Sgd(std::size_t n, DType type) {
  KernelCase made;
  made.name = "sgd " + Short(type);
  made.bytes = Bytes(n, 4 * sizeof(float) + SizeOf(type));
  made.AddNormal(kF32, n);
  made.AddNormal(kF32, n);
  made.AddNormal(type, n);
  made.launch = [=](const KernelTables& tables, const KernelCase::Memory& m,
                    void* stream) {
    kernels::SgdArgs args{};
    args.weights = reinterpret_cast<float*>(m[0]);
    args.momentum_buf = reinterpret_cast<float*>(m[1]);
    args.grads = m[2];
    args.type = type;
    args.n = n;
    args.lr = 1e-3F;
    args.momentum = 0.9F;
    args.weight_decay = 1e-4F;
    args.grad_scale = 1;
    return tables.elements.sgd(args, stream);
  };
  return made;
}

}  // namespace

std::size_t KernelCase::AddNormal(DType type, std::size_t n) {
  CaseBuffer buffer;
  buffer.type = type;
  buffer.contents.resize(n * SizeOf(type));
  const auto number = static_cast<int>(buffers.size());
  Gradients(type).Fill(number, 0,
                       {buffer.contents.data(), buffer.contents.size(), {}});
  buffers.push_back(std::move(buffer));
  return buffers.size() - 1;
}

std::size_t KernelCase::AddZeros(std::size_t size) {
  CaseBuffer buffer;
  buffer.contents.resize(size);
  buffers.push_back(std::move(buffer));
  return buffers.size() - 1;
}

std::vector<MakeCase> ElementCases(std::size_t n) {
  std::vector<MakeCase> made = {
      [=] { return Convert(n, kF32, kF16, false); },
      [=] { return Convert(n, kF16, kF32, false); },
      [=] { return Convert(n, kF32, kF16, true); },
      [=] { return Accumulate(n, kF32, kF32); },
      [=] { return Accumulate(n, kF32, kF16); },
      [=] { return Accumulate(n, kF16, kF16); },
  };
  for (const DType type : {kF32, kF16}) {
    made.push_back([=] { return ReduceMany(n, type); });
    made.push_back([=] { return Residual(n, type, true); });
    made.push_back([=] { return Residual(n, type, false); });
    made.push_back([=] { return L1Norm(n, type); });
    made.push_back([=] { return SumSquares(n, type); });
    made.push_back([=] { return FindNonfinite(n, type); });
    made.push_back([=] { return Sgd(n, type); });
  }
  return made;
}

}  // namespace gradientflow::benchmarks
