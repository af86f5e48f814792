#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gradientflow/communicator/inproc.h"
#include "gradientflow/session.h"
#include "kernels/kernels.h"
#include "tests/gpu/session_device.h"

// Training with the pool on a device, compared with training on the CPU: the
// weights after some steps of momentum SGD. Ranks are threads that share the
// device, and stage through the host.
namespace gradientflow::testing {
namespace {

constexpr int kSteps = 7;
constexpr std::size_t kChunk = 1000;
const std::vector<std::size_t> kTensors = {5000, 3, 20011, 1, 1000, 64, 30000};

struct Mode {
  const char* name;
  DType pool;
  DType wire;
  float sparsity;
  bool lars;
  double tolerance;  // For weights, which are about 1.
};
void PrintTo(const Mode& mode, std::ostream* out) { *out << mode.name; }

// float16 rounds at different places on the way.
constexpr Mode kModes[] = {
    {"DenseFloat", DType::kFloat32, DType::kFloat32, 0, false, 1e-5},
    {"DenseHalf", DType::kFloat16, DType::kFloat16, 0, false, 5e-3},
    {"DenseHalfWire", DType::kFloat32, DType::kFloat16, 0, false, 5e-3},
    {"SparseFloat", DType::kFloat32, DType::kFloat32, 0.7F, false, 1e-5},
    {"SparseHalfWire", DType::kFloat32, DType::kFloat16, 0.7F, false, 5e-3},
    {"SparseLars", DType::kFloat32, DType::kFloat32, 0.7F, true, 1e-5}};

// Where a rank's gradients and weights are. A null device means the host.
struct Home {
  std::shared_ptr<Device> device;
  std::unique_ptr<Stream> stream;

  explicit Home(std::shared_ptr<Device> where) : device(std::move(where)) {
    if (device != nullptr) stream = device->NewStream(false).value();
  }
  DeviceMemory Make(std::size_t bytes) const {
    if (device != nullptr) return device->Allocate(bytes).value();
    return {new std::byte[bytes], std::default_delete<std::byte[]>()};
  }
  void Copy(void* dst, const void* src, std::size_t bytes) const {
    if (stream == nullptr) {
      std::memcpy(dst, src, bytes);
      return;
    }
    EXPECT_TRUE(stream->Copy(dst, src, bytes).ok());
  }
  void Wait() const {
    if (stream != nullptr) {
      EXPECT_TRUE(stream->Synchronize().ok());
    }
  }
};

// Chunks differ so much in size that rounding changes no selection.
std::vector<float> Values(std::uint64_t seed, std::size_t n, std::size_t at) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t chunk = (at + i) / kChunk;
    values[i] = normal(random) * static_cast<float>(1 + chunk * 7 % 61) / 30;
  }
  return values;
}

std::vector<std::byte> InType(const std::vector<float>& values, DType type) {
  std::vector<std::byte> bytes(values.size() * SizeOf(type));
  kernels::ConvertArgs args{};
  args.src = values.data();
  args.src_type = DType::kFloat32;
  args.dst = bytes.data();
  args.dst_type = type;
  args.n = values.size();
  args.scale = 1;
  EXPECT_EQ(kernels::CpuKernels().convert(args, nullptr), 0);
  return bytes;
}

void Step(GradientSession& session, const Home& home, DType pool, int step) {
  // Lent to the stream until the step is finished.
  std::vector<std::vector<std::byte>> gradients(session.tensors());
  for (std::size_t i = session.tensors(); i-- > 0;) {
    const std::uint64_t seed =
        static_cast<std::uint64_t>(step) * 1000 +
        static_cast<std::uint64_t>(session.rank()) * 100 + i;
    gradients[i] =
        InType(Values(seed, kTensors[i], session.pool_offset(i)), pool);
    home.Copy(session.gradient(i).data, gradients[i].data(),
              gradients[i].size());
    session.GradientReady(i);
  }
  const auto stats = session.FinishStep();
  ASSERT_TRUE(stats.ok()) << stats.status().ToString();
  EXPECT_FALSE(stats.value().nonfinite);
  home.Wait();
}

// All weights of one rank after the last step.
std::vector<float> Train(GradientSession& session, const Home& home,
                         const Mode& mode) {
  if (home.stream != nullptr) {
    EXPECT_TRUE(session.SetStream(home.stream->native()).ok());
  }
  std::vector<DeviceMemory> memory;
  std::vector<float*> weights;
  for (std::size_t i = 0; i < kTensors.size(); ++i) {
    const std::vector<float> first(kTensors[i], 1.0F);
    memory.push_back(home.Make(kTensors[i] * sizeof(float)));
    home.Copy(memory.back().get(), first.data(), first.size() * sizeof(float));
    home.Wait();
    weights.push_back(reinterpret_cast<float*>(memory.back().get()));
  }
  OptimizerOptions config;
  config.weight_decay = 1e-3F;
  if (mode.lars) config.kind = OptimizerOptions::Kind::kLars;
  for (int step = 0; step < kSteps; ++step) {
    Step(session, home, mode.pool, step);
    const Status updated = session.OptimizerStep(config, weights);
    EXPECT_TRUE(updated.ok()) << updated.ToString();
  }
  std::vector<float> all;
  for (std::size_t i = 0; i < kTensors.size(); ++i) {
    std::vector<float> last(kTensors[i]);
    home.Copy(last.data(), weights[i], last.size() * sizeof(float));
    home.Wait();
    all.insert(all.end(), last.begin(), last.end());
  }
  return all;
}

// By rank.
using Weights = std::vector<std::vector<float>>;

Weights TrainAll(const Mode& mode, int ranks, bool on_device) {
  ShmOptions shm;
  shm.arena_bytes = std::size_t{64} << 20;
  const auto group = InprocGroup::Create(ranks, shm);
  EXPECT_TRUE(group.ok()) << group.status().ToString();
  Weights weights(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Options options;
      options.rank = rank;
      options.size = ranks;
      options.arena_bytes = shm.arena_bytes;
      options.pool_dtype = mode.pool;
      options.wire_dtype = mode.wire;
      options.sparsity = mode.sparsity;
      options.chunk_elements = kChunk;
      options.bucket_bytes = std::size_t{16} << 10;
      options.device_collectives = DeviceCollectives::kStaged;
      options.log_level = LogLevel::kError;
      std::vector<TensorSpec> specs;
      for (const std::size_t elements : kTensors) {
        specs.push_back({"t" + std::to_string(specs.size()), elements});
      }
      const Home home(on_device ? OpenTestDevice(rank) : nullptr);
      auto comm = OpenInProcess(group.value(), options, home.device);
      ASSERT_TRUE(comm.ok()) << comm.status().ToString();
      auto session = GradientSession::Open(comm.value(), specs, options);
      ASSERT_TRUE(session.ok()) << session.status().ToString();
      EXPECT_EQ(session.value()->pool().device.kind != DeviceId::Kind::kCpu,
                on_device);
      weights[static_cast<std::size_t>(rank)] =
          Train(*session.value(), home, mode);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return weights;
}

class SessionOnDevice : public ::testing::TestWithParam<std::tuple<Mode, int>> {
};

TEST_P(SessionOnDevice, TrainsAsOnTheCpu) {
  const auto& [mode, ranks] = GetParam();
  const Weights expected = TrainAll(mode, ranks, false);
  const Weights seen = TrainAll(mode, ranks, true);
  ASSERT_EQ(seen.size(), expected.size());
  for (std::size_t rank = 0; rank < seen.size(); ++rank) {
    ASSERT_EQ(seen[rank].size(), expected[rank].size());
    EXPECT_EQ(seen[rank], seen[0]) << "rank " << rank;
    std::size_t moved = 0;
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < seen[rank].size(); ++i) {
      if (expected[rank][i] != 1.0F) ++moved;
      if (!(std::fabs(seen[rank][i] - expected[rank][i]) <= mode.tolerance)) {
        ++wrong;
      }
    }
    EXPECT_GT(moved, seen[rank].size() / 5);
    EXPECT_EQ(wrong, 0U) << "rank " << rank;
  }
}

std::string ParamText(
    const ::testing::TestParamInfo<std::tuple<Mode, int>>& info) {
  return std::get<Mode>(info.param).name +
         std::to_string(std::get<int>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Modes, SessionOnDevice,
                         ::testing::Combine(::testing::ValuesIn(kModes),
                                            ::testing::Values(1, 2, 3)),
                         ParamText);

}  // namespace
}  // namespace gradientflow::testing
