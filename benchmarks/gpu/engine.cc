// What a step of a session costs beyond NCCL itself: a session and bare calls
// of ncclAllReduce exchange the same buckets in turn. The gradients are
// complete beforehand, so nothing overlaps. One process is one rank.
#include <cstdio>
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

struct Arguments {
  std::string plan;
  int rank = 0;
  int size = 1;
  std::string rendezvous = "127.0.0.1:29471";
  std::vector<std::size_t> bucket_mib = {1, 4, 16, 64};
  int steps = 20;
};

// A session, and the bare calls that do the same.
struct Pair {
  std::unique_ptr<GradientSession> session;
  std::unique_ptr<BareNccl> bare;
  std::size_t buckets = 0;
};

Options OptionsFor(const Arguments& arguments, int device,
                   std::size_t bucket_bytes) {
  Options options;
  options.rank = arguments.rank;
  options.size = arguments.size;
  options.rendezvous = arguments.rendezvous;
  options.socket_ifname = "lo";
  options.device = StrCat("cuda:", device);
  options.device_collectives = DeviceCollectives::kNccl;
  options.pool_dtype = options.wire_dtype = DType::kFloat16;
  options.bucket_bytes = bucket_bytes;
  return options;
}

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

// Prints a row, and returns it in JSON.
nlohmann::json Report(const Model& model, const Rig& rig, const Pair& pair,
                      const Cost& cost) {
  const double allowed = kShare * cost.bare + kSeconds;
  const bool met = cost.more <= allowed;
  const auto theta =
      static_cast<double>(pair.session->options().bucket_bytes) / kMebibyte;
  std::printf("%8.0f %8zu %10.1f %10.1f %10.1f %10.1f  %s\n", theta,
              pair.buckets, 1e6 * cost.bare, 1e6 * cost.ours, 1e6 * cost.more,
              1e6 * allowed, met ? "ok" : "MISS");
  std::fflush(stdout);
  return {{"benchmark", "gpu_engine"},
          {"device", rig.description()},
          {"model", model.name},
          {"ranks", pair.session->size()},
          {"theta_mib", theta},
          {"buckets", pair.buckets},
          {"bare_us", 1e6 * cost.bare},
          {"ours_us", 1e6 * cost.ours},
          {"more_us", 1e6 * cost.more},
          {"allowed_us", 1e6 * allowed},
          {"met", met}};
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  using namespace gradientflow::benchmarks;  // NOLINT: a main().
  Arguments arguments;
  GpuProgram program("A session's step against bare NCCL.");
  program.rig.copy_bytes = kMebibyte;  // No copy is timed.
  CLI::App& app = program.app;
  app.add_option("--plan", arguments.plan,
                 "a model's, as benchmarks/lib/models.py NAME prints it")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("--rank", arguments.rank);
  app.add_option("--size", arguments.size, "ranks, each a process")
      ->check(CLI::Range(1, 64));
  app.add_option("--rendezvous", arguments.rendezvous);
  app.add_option("--bucket-mib", arguments.bucket_mib, "bucket sizes")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  app.add_option("--steps", arguments.steps, "per round")
      ->check(CLI::Range(1, 10000));
  return program.Run(argc, argv, [&](Rig& rig, std::ostream& json) {
    std::ifstream file(arguments.plan);
    const Model model = nlohmann::json::parse(file);
    if (arguments.rank == 0) {
      std::printf(
          "%s, %s in float16, ranks: %d\ntheta MB  buckets    bare us    ours "
          "us    more us    allowed\n",
          rig.description().c_str(), model.name.c_str(), arguments.size);
    }
    for (const std::size_t mib : arguments.bucket_mib) {
      Pair pair =
          Open(model, OptionsFor(arguments, program.device, mib * kMebibyte),
               rig.device());
      const Cost cost = Measure(pair, rig, program.rig.rounds, arguments.steps);
      if (arguments.rank > 0) continue;
      json << Report(model, rig, pair, cost).dump() << "\n";
    }
  });
}
