#include "tests/session/steps.h"

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

namespace gradientflow::testing {

Job Steps::MakeJob() {
  Job job;
  std::tie(job.over, job.size) = GetParam();
  job.options.segment_bytes = std::size_t{32} << 10;
  job.tensors = SomeTensors();
  return job;
}

std::vector<TensorSpec> SomeTensors() {
  std::vector<TensorSpec> tensors;
  for (std::size_t elements :
       {300, 1, 5000, 64, 0, 20011, 7, 4096, 2, 999, 1}) {
    tensors.push_back({"weight" + std::to_string(tensors.size()), elements});
  }
  return tensors;
}

std::vector<std::size_t> AllTensors(const GradientSession& session) {
  std::vector<std::size_t> tensors(session.tensors());
  std::iota(tensors.begin(), tensors.end(), std::size_t{0});
  return tensors;
}

std::span<float> Floats(const GradientSession& session, std::size_t tensor) {
  const BufferView view = session.gradient(tensor);
  return {reinterpret_cast<float*>(view.data), view.bytes / sizeof(float)};
}

float Gradient(int rank, std::size_t tensor, std::size_t i, int step) {
  const std::size_t mix = i * 7 + tensor * 13 +
                          static_cast<std::size_t>(rank) * 29 +
                          static_cast<std::size_t>(step) * 5;
  return static_cast<float>(static_cast<int>(mix % 129) - 64) / 64.0F;
}

void Fill(GradientSession& session, std::size_t tensor, int step,
          float loss_scale) {
  const std::span<float> gradient = Floats(session, tensor);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = Gradient(session.rank(), tensor, i, step) * loss_scale;
  }
}

void Produce(GradientSession& session, std::size_t tensor, int step,
             float loss_scale) {
  Fill(session, tensor, step, loss_scale);
  session.GradientReady(tensor);
}

void ProduceAll(GradientSession& session, int step, float loss_scale) {
  for (std::size_t i = session.tensors(); i-- > 0;) {
    Produce(session, i, step, loss_scale);
  }
}

void ExpectMean(GradientSession& session, std::size_t tensor, int step,
                const std::function<bool(int)>& takes_part, double tolerance) {
  const std::span<const float> seen = Floats(session, tensor);
  std::vector<int> ranks;
  for (int rank = 0; rank < session.size(); ++rank) {
    if (takes_part(rank)) ranks.push_back(rank);
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    double sum = 0;
    for (const int rank : ranks) {
      sum += double{Gradient(rank, tensor, i, step)};
    }
    const double mean = sum / session.size();
    // The macro is slower than everything else here.
    if (std::fabs(double{seen[i]} - mean) <= tolerance) continue;
    ASSERT_NEAR(double{seen[i]}, mean, tolerance)
        << "rank " << session.rank() << " step " << step << " tensor " << tensor
        << " element " << i;
  }
}

StepStats FinishAndCheck(GradientSession& session, int step, double tolerance) {
  Result<StepStats> stats = session.FinishStep();
  EXPECT_TRUE(stats.ok()) << stats.status().ToString();
  if (!stats.ok()) return {};
  EXPECT_EQ(stats.value().step, static_cast<std::uint64_t>(step));
  EXPECT_FALSE(stats.value().nonfinite);
  for (std::size_t i = 0; i < session.tensors(); ++i) {
    ExpectMean(
        session, i, step, [](int) { return true; }, tolerance);
  }
  return stats.value();
}

}  // namespace gradientflow::testing
