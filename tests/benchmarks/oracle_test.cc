#include "benchmarks/scaling/oracle.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/kernels.h"

namespace gradientflow::benchmarks {
namespace {

constexpr std::size_t kElements = 1003;
constexpr std::size_t kChunk = 100;
constexpr int kRanks = 3;
constexpr float kMomentum = 0.9F;

BufferView View(std::vector<float>& pool) {
  return BufferView{reinterpret_cast<std::byte*>(pool.data()),
                    pool.size() * sizeof(float),
                    {}};
}

Oracle::Pool PoolOf() {
  return Oracle::Pool{kElements, DType::kFloat32, kRanks, kChunk, kMomentum};
}

// What an exchange must produce: a second model, over whole pools.
class Exchange {
 public:
  explicit Exchange(const Gradients& gradients)
      : gradients_(gradients),
        residuals_(kRanks, std::vector<double>(kElements)) {}

  std::vector<float> Step(std::uint64_t step,
                          const std::vector<std::uint8_t>& selection) {
    std::vector<float> pool(kElements, -77);
    std::vector<float> own(kElements);
    std::vector<double> sums(kElements);
    for (int rank = 0; rank < kRanks; ++rank) {
      gradients_.Fill(rank, step, View(own));
      for (std::size_t e = 0; e < kElements; ++e) {
        double& residual = residuals_[static_cast<std::size_t>(rank)][e];
        residual += own[e];
        sums[e] += residual;
        const bool sent = selection.empty() || selection[e / kChunk] != 0;
        residual *= sent ? 0 : kMomentum;
        if (sent) pool[e] = static_cast<float>(sums[e] / kRanks);
      }
    }
    return pool;
  }

 private:
  const Gradients& gradients_;
  std::vector<std::vector<double>> residuals_;
};

TEST(Gradients, FillWritesWhatValueSays) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    const Gradients gradients(dtype);
    // Longer than the table, so that it wraps around.
    std::vector<std::byte> pool(300007 * SizeOf(dtype));
    const BufferView view{pool.data(), pool.size(), {}};
    gradients.Fill(1, 5, view);
    for (std::size_t e = 0; e < 300007; e += 991) {
      ASSERT_EQ(ElementAt(view, dtype, e), gradients.Value(1, 5, e)) << e;
    }
  }
}

TEST(Gradients, DifferByRankAndStep) {
  const Gradients gradients(DType::kFloat32);
  const auto same = [&](int rank, std::uint64_t step) {
    int equal = 0;
    for (std::size_t e = 0; e < 1000; ++e) {
      equal += gradients.Value(0, 0, e) == gradients.Value(rank, step, e);
    }
    return equal;
  };
  EXPECT_EQ(same(0, 0), 1000);
  EXPECT_LT(same(1, 0), 10);
  EXPECT_LT(same(0, 1), 10);
}

TEST(Oracle, AgreesWithAnExchangeOverDenseAndSparseSteps) {
  const Gradients gradients(DType::kFloat32);
  Exchange exchange(gradients);
  Oracle oracle(gradients, PoolOf());
  std::vector<std::uint8_t> selection;  // The first step sends all.
  for (std::uint64_t step = 0; step < 6; ++step) {
    std::vector<float> pool = exchange.Step(step, selection);
    const Status status = oracle.Check(step, View(pool), selection);
    EXPECT_TRUE(status.ok()) << status.ToString();
    selection.assign(11, 0);
    selection[step] = selection[10 - step] = 1;
  }
  EXPECT_EQ(oracle.samples(), kElements);
}

void Convert(const void* src, DType src_type, void* dst, DType dst_type) {
  kernels::ConvertArgs args{};
  args.src = src;
  args.src_type = src_type;
  args.dst = dst;
  args.dst_type = dst_type;
  args.n = 1;
  args.scale = 1;
  kernels::CpuKernels().convert(args, nullptr);
}

// The value as a float16.
std::uint16_t HalfBits(double value) {
  const auto wide = static_cast<float>(value);
  std::uint16_t bits = 0;
  Convert(&wide, DType::kFloat32, &bits, DType::kFloat16);
  return bits;
}
float Half(double value) {
  const std::uint16_t bits = HalfBits(value);
  float rounded = 0;
  Convert(&bits, DType::kFloat16, &rounded, DType::kFloat32);
  return rounded;
}

TEST(Oracle, AllowsWhatAPoolOf16BitsRoundsToCountInTheNextStep) {
  const Gradients gradients(DType::kFloat16);
  Oracle::Pool pool = PoolOf();
  pool.dtype = DType::kFloat16;
  Oracle oracle(gradients, pool);
  std::vector<std::vector<double>> residuals(kRanks,
                                             std::vector<double>(kElements));
  for (std::uint64_t step = 0; step < 30; ++step) {
    std::vector<std::uint8_t> selection(11, 1);
    if (step % 3 == 1) selection.assign(11, 0);  // Grows beyond a gradient.
    std::vector<std::uint16_t> bits(kElements);
    for (std::size_t e = 0; e < kElements; ++e) {
      if (selection[e / kChunk] == 0) {
        for (int rank = 0; rank < kRanks; ++rank) {
          double& left = residuals[static_cast<std::size_t>(rank)][e];
          left = kMomentum * (left + gradients.Value(rank, step, e));
        }
        continue;
      }
      double sum = 0;
      for (int rank = 0; rank < kRanks; ++rank) {
        double& left = residuals[static_cast<std::size_t>(rank)][e];
        const double all = left + gradients.Value(rank, step, e);
        sum += Half(all);
        left = all - Half(all);
      }
      bits[e] = HalfBits(sum / kRanks);
    }
    const BufferView view{
        reinterpret_cast<std::byte*>(bits.data()), kElements * 2, {}};
    const Status status = oracle.Check(step, view, selection);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
}

TEST(Oracle, SeesAWrongElement) {
  const Gradients gradients(DType::kFloat32);
  Exchange exchange(gradients);
  Oracle oracle(gradients, PoolOf());
  std::vector<float> pool = exchange.Step(0, {});
  pool[kElements - 1] += 1e-3F;
  const Status status = oracle.Check(0, View(pool), {});
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("step 0: element 1002: expected"),
            std::string::npos)
      << status.message();
}

TEST(Oracle, SeesAResidualThatWasLost) {
  const Gradients gradients(DType::kFloat32);
  const std::vector<std::uint8_t> none(11, 0);
  Oracle oracle(gradients, PoolOf());
  std::vector<float> pool(kElements);
  ASSERT_TRUE(oracle.Check(0, View(pool), none).ok());
  // As if step 0 had never happened.
  Exchange forgetful(gradients);
  pool = forgetful.Step(1, {});
  EXPECT_FALSE(oracle.Check(1, View(pool), {}).ok());
}

TEST(Oracle, SeesANotANumber) {
  const Gradients gradients(DType::kFloat32);
  Exchange exchange(gradients);
  Oracle oracle(gradients, PoolOf());
  std::vector<float> pool = exchange.Step(0, {});
  pool[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(oracle.Check(0, View(pool), {}).ok());
}

TEST(Oracle, HashTellsOneBit) {
  const Gradients gradients(DType::kFloat32);
  Exchange exchange(gradients);
  std::vector<float> pool = exchange.Step(0, {});
  Oracle one(gradients, PoolOf());
  Oracle same(gradients, PoolOf());
  Oracle other(gradients, PoolOf());
  ASSERT_TRUE(one.Check(0, View(pool), {}).ok());
  ASSERT_TRUE(same.Check(0, View(pool), {}).ok());
  pool[0] = std::nextafter(pool[0], 2.0F);
  ASSERT_TRUE(other.Check(0, View(pool), {}).ok());
  EXPECT_EQ(one.hash(), same.hash());
  EXPECT_NE(one.hash(), other.hash());
}

}  // namespace
}  // namespace gradientflow::benchmarks
