#include "benchmarks/scaling/gpu.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "benchmarks/scaling/gradients.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow::benchmarks {
namespace {

constexpr std::size_t kElementBytes = 2;  // float16.
constexpr std::size_t kOperandBytes = kElementBytes * kMaxGemmElements;
constexpr Gemm kChecked = {64, 24, 96};
// Half a unit in float16's last place, up to 64: sums of 96 products of normal
// numbers stay below that.
constexpr double kTolerance = 0x1p-6 + 1e-4;

// Of an element, in a matrix of so many rows.
std::size_t Index(int row, int column, int rows) {
  return static_cast<std::size_t>(row) +
         static_cast<std::size_t>(column) * static_cast<std::size_t>(rows);
}

}  // namespace

Result<std::unique_ptr<Gpu>> Gpu::Create(std::shared_ptr<Device> device,
                                         const MakeBlas& make_blas) {
  std::unique_ptr<Gpu> gpu(new Gpu(std::move(device)));
  Result<std::unique_ptr<Stream>> stream =
      gpu->device_->NewStream(/*urgent=*/false);
  if (!stream.ok()) return stream.status();
  gpu->stream_ = std::move(stream).value();
  for (DeviceMemory* memory : {&gpu->a_, &gpu->b_, &gpu->c_}) {
    Result<DeviceMemory> made = gpu->device_->Allocate(kOperandBytes);
    if (!made.ok()) return made.status();
    *memory = std::move(made).value();
  }
  GF_RETURN_IF_ERROR(gpu->device_->RunCurrent([&]() -> Status {
    Result<std::unique_ptr<Blas>> blas = make_blas(gpu->stream_->native());
    if (!blas.ok()) return blas.status();
    gpu->blas_ = std::move(blas).value();
    return Status();
  }));
  GF_RETURN_IF_ERROR(gpu->Reserve(kOperandBytes));
  GF_RETURN_IF_ERROR(gpu->FillOperands());
  GF_RETURN_IF_ERROR(gpu->CheckProduct());
  return gpu;
}

Gpu::~Gpu() {
  static_cast<void>(device_->RunCurrent([this] {
    blas_.reset();
    return Status();
  }));
}

Status Gpu::FillOperands() {
  const Gradients normal(DType::kFloat16);
  for (const auto& [rank, memory] : {std::pair(0, &a_), std::pair(1, &b_)}) {
    normal.Fill(rank, 0, {host_.get(), kOperandBytes, {}});
    GF_RETURN_IF_ERROR(
        stream_->Copy(memory->get(), host_.get(), kOperandBytes));
    GF_RETURN_IF_ERROR(stream_->Synchronize());
  }
  return Status();
}

Status Gpu::CheckProduct() {
  GF_RETURN_IF_ERROR(Multiply(kChecked));
  const std::size_t bytes = kElementBytes * kChecked.m * kChecked.n;
  GF_RETURN_IF_ERROR(stream_->Copy(host_.get(), c_.get(), bytes));
  GF_RETURN_IF_ERROR(stream_->Synchronize());
  const Gradients normal(DType::kFloat16);
  for (int column = 0; column < kChecked.n; ++column) {
    for (int row = 0; row < kChecked.m; ++row) {
      double expected = 0;
      for (int i = 0; i < kChecked.k; ++i) {
        const double left = normal.Value(0, 0, Index(row, i, kChecked.m));
        expected += left * normal.Value(1, 0, Index(i, column, kChecked.k));
      }
      const double seen = ElementAt({host_.get(), bytes, {}}, DType::kFloat16,
                                    Index(row, column, kChecked.m));
      if (std::fabs(seen - expected) <= kTolerance) continue;
      return Status(StatusCode::kDataLoss,
                    StrCat(device_->description(), ": product, row ", row,
                           ", column ", column, ": expected ", expected, " +- ",
                           kTolerance, ", got ", seen));
    }
  }
  return Status();
}

Status Gpu::Multiply(const Gemm& gemm) {
  return device_->RunCurrent([&] {
    return blas_->Multiply(gemm, {a_.get(), b_.get(), c_.get()});
  });
}

Status Gpu::Reserve(std::size_t bytes) {
  if (bytes <= bytes_) return Status();
  GF_RETURN_IF_ERROR(stream_->Synchronize());
  Result<DeviceMemory> host = device_->AllocatePinned(bytes);
  if (!host.ok()) return host.status();
  Result<DeviceMemory> prepared = device_->Allocate(bytes);
  if (!prepared.ok()) return prepared.status();
  host_ = std::move(host).value();
  prepared_ = std::move(prepared).value();
  bytes_ = bytes;
  return Status();
}

}  // namespace gradientflow::benchmarks
