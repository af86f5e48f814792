#include "benchmarks/scaling/gemm_backward.h"

#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "benchmarks/scaling/oracle.h"
#include "gtest/gtest.h"
#include "kernels/kernels.h"
#include "tests/device/fake_device.h"

// Backward on a GPU, on a fake one.
namespace gradientflow::benchmarks {
namespace {

using testing::FakeDevice;
using testing::FakeLag;
using testing::FakeOptions;

std::vector<float> Floats(const void* matrix, int elements) {
  std::vector<float> values(static_cast<std::size_t>(elements));
  kernels::ConvertArgs args{};
  args.src = matrix;
  args.src_type = DType::kFloat16;
  args.dst = values.data();
  args.dst_type = DType::kFloat32;
  args.n = values.size();
  args.scale = 1;
  EXPECT_EQ(kernels::CpuKernels().convert(args, nullptr), 0);
  return values;
}

std::size_t Index(int row, int column, int rows) {
  return static_cast<std::size_t>(row) +
         static_cast<std::size_t>(column) * static_cast<std::size_t>(rows);
}

// Counts the products; does small ones, at the call.
class FakeBlas final : public Blas {
 public:
  struct Log {
    std::vector<Gemm> gemms;
    float error = 0;  // Added to one element of each result.
  };
  explicit FakeBlas(Log* log) : log_(log) {}

  Status Multiply(const Gemm& gemm, const GemmOperands& operands) override {
    log_->gemms.push_back(gemm);
    if (gemm.flops() > 1e6) return Status();
    const std::vector<float> a = Floats(operands.a, gemm.m * gemm.k);
    const std::vector<float> b = Floats(operands.b, gemm.k * gemm.n);
    for (int n = 0; n < gemm.n; ++n) {
      for (int m = 0; m < gemm.m; ++m) {
        float sum = m + n == 0 ? log_->error : 0;
        for (int k = 0; k < gemm.k; ++k) {
          sum += a[Index(m, k, gemm.m)] * b[Index(k, n, gemm.k)];
        }
        Put(sum, static_cast<std::byte*>(operands.c) + 2 * Index(m, n, gemm.m));
      }
    }
    return Status();
  }

 private:
  static void Put(float value, void* dst) {
    kernels::ConvertArgs args{};
    args.src = &value;
    args.src_type = DType::kFloat32;
    args.dst = dst;
    args.dst_type = DType::kFloat16;
    args.n = 1;
    args.scale = 1;
    EXPECT_EQ(kernels::CpuKernels().convert(args, nullptr), 0);
  }

  Log* const log_;
};

Model Net() {
  Model model;
  model.name = "net";
  model.batch = 3;
  model.tensors = {ModelTensor{"first", 1009, 0.003, 2e9},
                   ModelTensor{"bias", 1, 0.003, 0},
                   ModelTensor{"last", 4001, 0.001, 5e6}};
  return model;
}

class GemmBackwardTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Gpu>> MakeGpu() {
    return Gpu::Create(device_, [this](void*) -> Result<std::unique_ptr<Blas>> {
      return std::unique_ptr<Blas>(std::make_unique<FakeBlas>(&log_));
    });
  }

  // The pool lies in generation order: last, bias, first.
  std::unique_ptr<GemmBackward> Make(Gpu* gpu) {
    const std::size_t bytes = 2 * model_.elements();
    pool_ = device_->Allocate(bytes).value();
    GemmBackwardParts parts;
    parts.model = &model_;
    parts.gradients = &gradients_;
    parts.waiter = &waiter_;
    parts.gpu = gpu;
    parts.pool = {pool_.get(), bytes, device_->id()};
    parts.offsets = {2 * 4002, 2 * 4001, 0};
    parts.element_bytes = 2;
    parts.rank = 1;
    auto made = GemmBackward::Create(parts);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return std::move(made).value();
  }

  FakeBlas::Log log_;
  const std::shared_ptr<FakeDevice> device_ =
      std::make_shared<FakeDevice>(FakeOptions{.lag = FakeLag::kRandom});
  const Model model_ = Net();
  const Gradients gradients_{DType::kFloat16};
  SleepingWaiter waiter_;
  DeviceMemory pool_;
};

TEST_F(GemmBackwardTest, PutsEveryStepsGradientsIntoThePool) {
  const auto gpu = MakeGpu();
  ASSERT_TRUE(gpu.ok()) << gpu.status().ToString();
  const auto backward = Make(gpu.value().get());
  for (const std::uint64_t step : {0, 1, 9}) {
    ASSERT_TRUE(backward->Prepare(step).ok());
    ASSERT_TRUE(backward->Run(waiter_.Now(), [](std::size_t) {}).ok());
    ASSERT_TRUE(backward->End().ok());
    const auto pool = backward->Read();
    ASSERT_TRUE(pool.ok());
    ASSERT_EQ(pool.value().bytes, 2 * model_.elements());
    EXPECT_NE(pool.value().data, pool_.get());
    for (std::size_t i = 0; i < model_.elements(); ++i) {
      ASSERT_EQ(ElementAt(pool.value(), DType::kFloat16, i),
                gradients_.Value(1, step, i))
          << "step " << step << ", element " << i;
    }
  }
}

TEST_F(GemmBackwardTest, DoesTheLayersProductsBeforeEachGradientIsReady) {
  const auto gpu = MakeGpu();
  ASSERT_TRUE(gpu.ok()) << gpu.status().ToString();
  const auto backward = Make(gpu.value().get());
  EXPECT_FALSE(backward->seconds_alone().has_value());
  ASSERT_TRUE(backward->Prepare(0).ok());
  log_.gemms.clear();
  std::vector<std::size_t> order;
  std::vector<double> flops;
  ASSERT_TRUE(backward
                  ->Run(waiter_.Now(),
                        [&](std::size_t i) {
                          order.push_back(i);
                          flops.push_back(0);
                          for (const Gemm& gemm : log_.gemms) {
                            flops.back() += gemm.flops();
                          }
                        })
                  .ok());
  ASSERT_TRUE(backward->End().ok());
  EXPECT_EQ(order, (std::vector<std::size_t>{2, 1, 0}));
  // Twice the forward operations of three images.
  EXPECT_NEAR(flops[0], 3e7, 3e6);
  EXPECT_EQ(flops[1], flops[0]);
  EXPECT_NEAR(flops[2], 1.203e10, 5e8);
}

TEST_F(GemmBackwardTest, EndsAfterTheDeviceNotAfterTheCall) {
  const auto gpu = MakeGpu();
  ASSERT_TRUE(gpu.ok()) << gpu.status().ToString();
  const auto backward = Make(gpu.value().get());
  ASSERT_TRUE(backward->Prepare(0).ok());
  device_->HoldStreams();
  ASSERT_TRUE(backward->Run(waiter_.Now(), [](std::size_t) {}).ok());
  // Long enough for a thread that does not wait for the device to be done.
  for (int i = 0; i < 100; ++i) std::thread([] {}).join();
  const Clock::Time held = waiter_.Now();
  device_->ReleaseStreams();
  const auto end = backward->End();
  ASSERT_TRUE(end.ok());
  EXPECT_GT(end.value(), held);
  EXPECT_EQ(backward->End().status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(GemmBackwardTest, FailsWithTheDevice) {
  const auto gpu = MakeGpu();
  ASSERT_TRUE(gpu.ok()) << gpu.status().ToString();
  const auto backward = Make(gpu.value().get());
  ASSERT_TRUE(backward->Prepare(0).ok());
  device_->FailWork(1, Status(StatusCode::kInternal, "burnt"));
  Status status = backward->Run(waiter_.Now(), [](std::size_t) {});
  if (status.ok()) status = backward->End().status();
  EXPECT_EQ(status.message(), "burnt");
  EXPECT_FALSE(backward->Read().ok());
}

TEST_F(GemmBackwardTest, RefusesALibraryThatMultipliesWrong) {
  log_.error = 0.5;
  const auto gpu = MakeGpu();
  EXPECT_EQ(gpu.status().code(), StatusCode::kDataLoss);
  EXPECT_NE(gpu.status().message().find("row 0, column 0"), std::string::npos)
      << gpu.status().ToString();
}

}  // namespace
}  // namespace gradientflow::benchmarks
