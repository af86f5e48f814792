// What a step of a session costs beyond NCCL itself: a session and bare calls
// of ncclAllReduce exchange the same buckets in turn. The gradients are
// complete beforehand, so nothing overlaps. One process is one rank.
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "benchmarks/gpu/bare_nccl.h"
#include "benchmarks/gpu/rig.h"
#include "benchmarks/median.h"
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
  Model model;
  int rank = 0;
  int size = 1;
  int device = 0;
  std::string rendezvous = "127.0.0.1:29471";
  std::vector<std::size_t> bucket_mib = {1, 4, 16, 64};
  int rounds = 7;
  int steps = 20;
  std::string json;
};

// A session, and the bare calls that do the same.
struct Pair {
  std::unique_ptr<GradientSession> session;
  std::unique_ptr<BareNccl> bare;
  std::size_t buckets = 0;
};

Options OptionsFor(const Arguments& arguments, std::size_t bucket_bytes) {
  Options options;
  options.rank = arguments.rank;
  options.size = arguments.size;
  options.rendezvous = arguments.rendezvous;
  options.socket_ifname = "lo";
  options.device = StrCat("cuda:", arguments.device);
  options.device_collectives = DeviceCollectives::kNccl;
  options.pool_dtype = options.wire_dtype = DType::kFloat16;
  options.bucket_bytes = bucket_bytes;
  return options;
}

Result<Pair> Open(const Arguments& arguments, std::size_t bucket_bytes,
                  Device& device) {
  const Model& model = arguments.model;
  std::vector<std::size_t> sizes;
  for (const ModelTensor& tensor : model.tensors) {
    sizes.push_back(tensor.elements);
  }
  Pair pair;
  auto session =
      GradientSession::Open(OptionsFor(arguments, bucket_bytes), model.Specs());
  if (!session.ok()) return session.status();
  pair.session = std::move(session).value();
  const auto layout = PoolLayout::Create(sizes);
  if (!layout.ok()) return layout.status();
  std::vector<Bucket> buckets =
      PlanDense(layout.value(), bucket_bytes, SizeOf(DType::kFloat16));
  pair.buckets = buckets.size();
  auto bare = BareNccl::Create(*pair.session, device, std::move(buckets));
  if (!bare.ok()) return bare.status();
  pair.bare = std::move(bare).value();
  return pair;
}

Status OurStep(GradientSession& session) {
  for (std::size_t i = session.tensors(); i-- > 0;) session.GradientReady(i);
  return session.FinishStep().status();
}

// Checks that `step` makes the mean over the ranks of known gradients.
Status Check(Pair& pair, Rig& rig, const std::function<Status()>& step) {
  const Gradients gradients(DType::kFloat16);
  const BufferView pool = pair.session->pool();
  std::vector<std::byte> host(pool.bytes);
  gradients.Fill(pair.session->rank(), 0, {host.data(), host.size(), {}});
  GF_RETURN_IF_ERROR(rig.Copy(pool.data, host.data(), host.size()));
  GF_RETURN_IF_ERROR(step());
  GF_RETURN_IF_ERROR(rig.Copy(host.data(), pool.data, host.size()));
  Oracle::Pool shape;
  shape.elements = pool.bytes / SizeOf(DType::kFloat16);
  shape.dtype = DType::kFloat16;
  shape.ranks = pair.session->size();
  return Oracle(gradients, shape).Check(0, {host.data(), host.size(), {}}, {});
}

struct Cost {
  double bare = 0;  // Seconds per step, medians over rounds.
  double ours = 0;
  double more = 0;  // Median of the rounds' differences.
};

Result<Cost> Measure(Pair& pair, Rig& rig, const Arguments& arguments) {
  GradientSession& session = *pair.session;
  GF_RETURN_IF_ERROR(Check(pair, rig, [&] { return OurStep(session); }));
  GF_RETURN_IF_ERROR(Check(pair, rig, [&] { return pair.bare->Step(); }));
  std::vector<double> bare;
  std::vector<double> ours;
  std::vector<double> more;
  for (int round = -1; round < arguments.rounds; ++round) {  // One warms up.
    const auto one =
        rig.Time(arguments.steps, [&](int) { return pair.bare->Step(); });
    if (!one.ok()) return one.status();
    const auto two =
        rig.Time(arguments.steps, [&](int) { return OurStep(session); });
    if (!two.ok()) return two.status();
    if (round < 0) continue;
    bare.push_back(one.value());
    ours.push_back(two.value());
    more.push_back(two.value() - one.value());
  }
  return Cost{Median(bare), Median(ours), Median(more)};
}

void Report(const Arguments& arguments, const Rig& rig, const Pair& pair,
            const Cost& cost, std::ofstream& json) {
  const double allowed = kShare * cost.bare + kSeconds;
  const bool met = cost.more <= allowed;
  const auto theta =
      static_cast<double>(pair.session->options().bucket_bytes) / kMebibyte;
  std::printf("%8.0f %8zu %10.1f %10.1f %10.1f %10.1f  %s\n", theta,
              pair.buckets, 1e6 * cost.bare, 1e6 * cost.ours, 1e6 * cost.more,
              1e6 * allowed, met ? "ok" : "MISS");
  std::fflush(stdout);
  if (!json.is_open()) return;
  const nlohmann::json row = {{"benchmark", "gpu_engine"},
                              {"device", rig.description()},
                              {"model", arguments.model.name},
                              {"ranks", arguments.size},
                              {"theta_mib", theta},
                              {"buckets", pair.buckets},
                              {"bare_us", 1e6 * cost.bare},
                              {"ours_us", 1e6 * cost.ours},
                              {"more_us", 1e6 * cost.more},
                              {"allowed_us", 1e6 * allowed},
                              {"met", met}};
  json << row.dump() << "\n";
}

Status Run(const Arguments& arguments, const std::shared_ptr<Device>& device) {
  Rig::Settings settings;
  settings.copy_bytes = kMebibyte;  // No copy is timed.
  auto rig = Rig::Create(device, settings);
  if (!rig.ok()) return rig.status();
  std::ofstream json;
  if (arguments.rank == 0) {
    if (!arguments.json.empty()) json.open(arguments.json);
    std::printf(
        "%s, %s in float16, ranks: %d\ntheta MB  buckets    bare us    ours "
        "us    more us    allowed\n",
        rig.value()->description().c_str(), arguments.model.name.c_str(),
        arguments.size);
  }
  for (const std::size_t mib : arguments.bucket_mib) {
    auto pair = Open(arguments, mib * kMebibyte, *device);
    if (!pair.ok()) return pair.status();
    const auto cost = Measure(pair.value(), *rig.value(), arguments);
    if (!cost.ok()) return cost.status();
    if (arguments.rank != 0) continue;
    Report(arguments, *rig.value(), pair.value(), cost.value(), json);
  }
  if (json.is_open() && !json.flush()) {
    return Status(StatusCode::kInternal, arguments.json + ": cannot write");
  }
  return Status();
}

int Main(int argc, char** argv) {
  Arguments arguments;
  std::string plan;
  CLI::App app("A session's step against bare NCCL.");
  app.option_defaults()->always_capture_default();
  app.add_option("--plan", plan,
                 "a model's, as benchmarks/lib/models.py NAME prints it")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("--rank", arguments.rank);
  app.add_option("--size", arguments.size, "ranks, each a process")
      ->check(CLI::Range(1, 64));
  app.add_option("--device", arguments.device,
                 "index of the GPU; no two ranks may share one");
  app.add_option("--rendezvous", arguments.rendezvous);
  app.add_option("--bucket-mib", arguments.bucket_mib, "bucket sizes")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  app.add_option("--rounds", arguments.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--steps", arguments.steps, "per round")
      ->check(CLI::Range(1, 10000));
  app.add_option("--json", arguments.json, "rank 0 writes JSON lines");
  CLI11_PARSE(app, argc, argv);
  std::ifstream file(plan);
  arguments.model = ModelOf(nlohmann::json::parse(file));
  auto device = OpenGpu(arguments.device);
  if (!device.ok()) return kNoDevice;
  const Status status = Run(arguments, device.value());
  if (status.ok()) return 0;
  std::fprintf(stderr, "engine, rank %d: %s\n", arguments.rank,
               status.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) try {
  return gradientflow::benchmarks::Main(argc, argv);
} catch (const std::exception& error) {
  std::fprintf(stderr, "engine: %s\n", error.what());
  return 1;
}
