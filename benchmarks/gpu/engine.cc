// What a step of a session costs beyond NCCL itself: a session and bare calls
// of ncclAllReduce exchange the same buckets in turn. The gradients are
// complete beforehand, so nothing overlaps. One process is one rank.
#include <unistd.h>

#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/gpu/bare_nccl.h"
#include "benchmarks/gpu/program.h"
#include "benchmarks/lib/median.h"
#include "benchmarks/scaling/gradients.h"
#include "benchmarks/scaling/model.h"
#include "benchmarks/scaling/oracle.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/session.h"
#include "nlohmann/json.hpp"

namespace gradientflow::benchmarks {
namespace {

constexpr double kShare = 0.03;     // The target is 3 % of the bare time
constexpr double kSeconds = 20e-6;  // plus this.
constexpr std::size_t kMebibyte = std::size_t{1} << 20;

// A session, and the bare calls that do the same.
struct Pair {
  std::unique_ptr<GradientSession> session;
  std::unique_ptr<BareNccl> bare;
  std::size_t buckets = 0;
};

Pair Open(const Model& model, const Options& options, Device& device) {
  std::vector<std::size_t> sizes;
  for (const ModelTensor& tensor : model.tensors) {
    sizes.push_back(tensor.elements);
  }
  std::vector<Bucket> buckets =
      PlanDense(Must(PoolLayout::Create(sizes)), options.bucket_bytes,
                SizeOf(options.wire_dtype));
  Pair pair;
  pair.buckets = buckets.size();
  pair.session = Must(GradientSession::Open(options, model.Specs()));
  pair.bare =
      std::make_unique<BareNccl>(*pair.session, device, std::move(buckets));
  return pair;
}

void OurStep(GradientSession& session) {
  for (std::size_t i = session.tensors(); i-- > 0;) session.GradientReady(i);
  Must(session.FinishStep());
}

// Checks that `step` makes the mean over the ranks of known gradients.
void Check(Pair& pair, Rig& rig, const std::function<void()>& step) {
  const Gradients gradients(DType::kFloat16);
  const BufferView pool = pair.session->pool();
  std::vector<std::byte> host(pool.bytes);
  gradients.Fill(pair.session->rank(), 0, {host.data(), host.size(), {}});
  rig.Copy(pool.data, host.data(), host.size());
  step();
  rig.Copy(host.data(), pool.data, host.size());
  Oracle::Pool shape;
  shape.elements = pool.bytes / SizeOf(DType::kFloat16);
  shape.dtype = DType::kFloat16;
  shape.ranks = pair.session->size();
  Must(Oracle(gradients, shape).Check(0, {host.data(), host.size(), {}}, {}));
}

struct Cost {
  double bare = 0;  // Seconds per step, medians over rounds.
  double ours = 0;
  double more = 0;  // Median of the rounds' differences.
};

Cost Measure(Pair& pair, Rig& rig, int rounds, int steps) {
  const auto ours = [&](int) { OurStep(*pair.session); };
  const auto bare = [&](int) { pair.bare->Step(); };
  Check(pair, rig, [&] { ours(0); });
  Check(pair, rig, [&] { bare(0); });
  std::vector<double> bare_seconds;
  std::vector<double> our_seconds;
  std::vector<double> more;
  for (int round = -1; round < rounds; ++round) {  // One warms up.
    const double one = rig.Time(steps, bare);
    const double two = rig.Time(steps, ours);
    if (round < 0) continue;
    bare_seconds.push_back(one);
    our_seconds.push_back(two);
    more.push_back(two - one);
  }
  return {Median(bare_seconds), Median(our_seconds), Median(more)};
}

Row RowOf(const Model& model, const Pair& pair, const Cost& cost) {
  const double allowed = kShare * cost.bare + kSeconds;
  const auto theta =
      static_cast<double>(pair.session->options().bucket_bytes) / kMebibyte;
  return {{"benchmark", "gpu_engine"},     {"model", model.name},
          {"ranks", pair.session->size()}, {"theta_mib", theta},
          {"buckets", pair.buckets},       {"bare_us", 1e6 * cost.bare},
          {"ours_us", 1e6 * cost.ours},    {"more_us", 1e6 * cost.more},
          {"allowed_us", 1e6 * allowed},   {"met", cost.more <= allowed}};
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  using namespace gradientflow;              // NOLINT: a main().
  using namespace gradientflow::benchmarks;  // NOLINT: a main().
  std::string plan;
  std::vector<std::size_t> bucket_mib = {1, 4, 16, 64};
  int steps = 20;
  GpuProgram program(
      "A session's step against bare NCCL. Ranks are processes with\n"
      "GRADIENTFLOW_RANK, _SIZE and _RENDEZVOUS.");
  program.rig.copy_bytes = kMebibyte;  // No copy is timed.
  CLI::App& app = program.app;
  app.add_option("--plan", plan,
                 "a model's, as benchmarks/lib/models.py NAME prints it")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("--bucket-mib", bucket_mib, "bucket sizes")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  app.add_option("--steps", steps, "per round")->check(CLI::Range(1, 10000));
  return program.Run(argc, argv, [&](Rig& rig, const Report& report) {
    Options options = Must(Options::FromEnv(environ));
    options.device = StrCat("cuda:", program.device);
    options.device_collectives = DeviceCollectives::kNccl;
    options.pool_dtype = options.wire_dtype = DType::kFloat16;
    std::ifstream file(plan);
    const Model model = nlohmann::json::parse(file);
    for (const std::size_t mib : bucket_mib) {
      options.bucket_bytes = mib * kMebibyte;
      Pair pair = Open(model, options, rig.device());
      const Cost cost = Measure(pair, rig, program.rig.rounds, steps);
      if (options.rank == 0) report(RowOf(model, pair, cost));
    }
  });
}
