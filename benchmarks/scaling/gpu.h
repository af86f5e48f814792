#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "benchmarks/scaling/blas.h"
#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"

namespace gradientflow::benchmarks {

// What backward passes on one GPU share: a stream, matrices to multiply, and
// room for a step's gradients here and there. NOT thread-safe.
class Gpu {
 public:
  using MakeBlas =
      std::function<Result<std::unique_ptr<Blas>>(void* native_stream)>;

  // Multiplies two small random matrices, and compares the result with the
  // host's: kDataLoss if it is wrong.
  static Result<std::unique_ptr<Gpu>> Create(std::shared_ptr<Device> device,
                                             const MakeBlas& make_blas);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  // On the stream, of matrices that are there.
  Status Multiply(const Gemm& gemm);

  // At least `bytes` of the host (page-locked) and of the device, from now on.
  Status Reserve(std::size_t bytes);
  std::byte* host() { return host_.get(); }
  std::byte* prepared() { return prepared_.get(); }

 private:
  explicit Gpu(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  Status FillOperands();
  Status CheckProduct();

  const std::shared_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  DeviceMemory a_;
  DeviceMemory b_;
  DeviceMemory c_;
  DeviceMemory host_;
  DeviceMemory prepared_;
  std::size_t bytes_ = 0;
  std::unique_ptr<Blas> blas_;
};

}  // namespace gradientflow::benchmarks
