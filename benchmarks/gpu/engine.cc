// What a step of a session costs beyond NCCL itself: a session and bare calls
// of ncclAllReduce exchange the same buckets in turn. The gradients are
// complete beforehand, so nothing overlaps. One process is one rank.
//
// A session also says whether its sums are finite, for which one pass reads the
// pool: `checked_us` is what the bare calls take with that pass.
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/gpu/program.h"
#include "benchmarks/lib/must.h"
#include "benchmarks/lib/turns.h"
#include "benchmarks/scaling/gradients.h"
#include "benchmarks/scaling/model.h"
#include "benchmarks/scaling/oracle.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/buckets/bucket_plan.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/nccl/abi.h"
#include "gradientflow/nccl/nccl_api.h"
#include "gradientflow/nccl/nccl_comm.h"
#include "gradientflow/session.h"
#include "nlohmann/json.hpp"

namespace gradientflow::benchmarks {
namespace {

constexpr double kShare = 0.03;     // The target is 3 % of the bare time
constexpr double kSeconds = 20e-6;  // plus this.
constexpr std::size_t kMebibyte = std::size_t{1} << 20;

// What a program without this library would do: one ncclAllReduce per bucket of
// the session's pool, on one stream, and a wait for that stream. Its
// communicator is a blocking one, as NCCL's are by default: a call is with the
// stream when it returns, and needs no thread. Errors are thrown (lib/must.h).
class BareNccl {
 public:
  // All ranks call it together. They meet over the session, whose pool is in
  // the memory of `device`.
  BareNccl(GradientSession& session, Device& device,
           std::vector<Bucket> buckets)
      : device_(device),
        pool_(session.pool()),
        dtype_(session.options().pool_dtype),
        buckets_(std::move(buckets)),
        stream_(Must(device.NewStream(/*urgent=*/false))),
        nonfinite_(Must(device.Allocate(sizeof(std::uint32_t)))),
        api_(Must(LoadNccl(session.options().nccl_library))) {
    Must(device.RunCurrent([&] { return Begin(session); }));
  }
  ~BareNccl() {
    if (comm_ == nullptr) return;
    static_cast<void>(device_.RunCurrent([this]() -> Status {
      GF_RETURN_IF_ERROR(Check("ncclCommFinalize", api_->comm_finalize(comm_)));
      return Check("ncclCommDestroy", api_->comm_destroy(comm_));
    }));
  }
  BareNccl(const BareNccl&) = delete;
  BareNccl& operator=(const BareNccl&) = delete;

  // The mean over the ranks, in place, complete when this returns.
  void Step() {
    Must(device_.RunCurrent([this] { return Allreduce(/*check=*/false); }));
  }
  // The same, and whether the mean is finite is found on the device.
  void CheckedStep() {
    Must(device_.RunCurrent([this] { return Allreduce(/*check=*/true); }));
  }

 private:
  Status Begin(GradientSession& session) {
    nccl::UniqueId id = {};
    if (session.rank() == 0) {
      GF_RETURN_IF_ERROR(Check("ncclGetUniqueId", api_->get_unique_id(&id)));
    }
    CollectiveCall call;
    call.kind = CollectiveKind::kBroadcast;
    call.output = id.bytes;
    call.count = sizeof(id.bytes);
    call.dtype = call.wire = DType::kInt8;
    GF_RETURN_IF_ERROR(session.communicator().Run(call));
    nccl::Config config;
    config.blocking = 1;
    return Check("ncclCommInitRankConfig",
                 api_->comm_init_rank_config(&comm_, session.size(), id,
                                             session.rank(), &config));
  }
  Status Check(const char* function, nccl::ReturnCode code) const {
    if (code == nccl::ReturnCode::kSuccess) return Status();
    return Status(StatusCode::kInternal,
                  StrCat(function, ": ", api_->get_error_string(code)));
  }
  Status Allreduce(bool check) {
    for (const Bucket& bucket : buckets_) {
      for (const Extent& extent : bucket.extents) {
        std::byte* data = pool_.data + extent.begin * SizeOf(dtype_);
        GF_RETURN_IF_ERROR(Check(
            "ncclAllReduce",
            api_->all_reduce(data, data, extent.count, NcclType(dtype_),
                             nccl::RedOp::kAvg, comm_, stream_->native())));
        if (!check) continue;
        GF_RETURN_IF_ERROR(device_.KernelStatus(
            "find_nonfinite",
            device_.kernels().find_nonfinite(
                {data, dtype_, extent.count,
                 reinterpret_cast<std::uint32_t*>(nonfinite_.get())},
                stream_->native())));
      }
    }
    return stream_->Synchronize();
  }

  Device& device_;
  const BufferView pool_;
  const DType dtype_;
  const std::vector<Bucket> buckets_;
  const std::unique_ptr<Stream> stream_;
  const DeviceMemory nonfinite_;
  const std::shared_ptr<const NcclApi> api_;
  nccl::Comm comm_ = nullptr;
};

std::vector<Bucket> BucketsOf(const Model& model, const Options& options) {
  std::vector<std::size_t> sizes;
  for (const ModelTensor& tensor : model.tensors) {
    sizes.push_back(tensor.elements);
  }
  return PlanDense(Must(PoolLayout::Aligned(sizes, SizeOf(options.pool_dtype))),
                   options.bucket_bytes, SizeOf(options.wire_dtype));
}

void OurStep(GradientSession& session) {
  for (std::size_t i = session.tensors(); i-- > 0;) session.GradientReady(i);
  Must(session.FinishStep());
}

// Checks that `step` makes the mean over the ranks of known gradients.
void Check(GradientSession& session, Rig& rig, const Rig::Launch& step) {
  const Gradients gradients(DType::kFloat16);
  const BufferView pool = session.pool();
  std::vector<std::byte> host(pool.bytes);
  const BufferView view = {host.data(), host.size(), {}};
  gradients.Fill(session.rank(), 0, view);
  rig.Copy(pool.data, host.data(), host.size());
  step(0);
  rig.Copy(host.data(), pool.data, host.size());
  Oracle::Pool shape;
  shape.elements = pool.bytes / SizeOf(DType::kFloat16);
  shape.dtype = DType::kFloat16;
  shape.ranks = session.size();
  Must(Oracle(gradients, shape).Check(0, view, {}));
}

// Times `steps` steps of each side in every round; medians count.
Row Measure(GradientSession& session, BareNccl& nccl, Rig& rig, int rounds,
            int steps) {
  const auto ours = [&](int) { OurStep(session); };
  const auto bare = [&](int) { nccl.Step(); };
  const auto checked = [&](int) { nccl.CheckedStep(); };
  Check(session, rig, ours);
  Check(session, rig, bare);
  Check(session, rig, checked);
  const auto seconds =
      TakeTurns(rounds, {[&] { return rig.Time(steps, bare); },
                         [&] { return rig.Time(steps, ours); },
                         [&] { return rig.Time(steps, checked); }});
  std::vector<double> more;
  std::vector<double> more_than_checked;
  for (std::size_t i = 0; i < seconds[0].size(); ++i) {
    more.push_back(seconds[1][i] - seconds[0][i]);
    more_than_checked.push_back(seconds[1][i] - seconds[2][i]);
  }
  const double allowed = kShare * Median(seconds[0]) + kSeconds;
  return {{"bare_us", 1e6 * Median(seconds[0])},
          {"ours_us", 1e6 * Median(seconds[1])},
          {"more_us", 1e6 * Median(more)},
          {"allowed_us", 1e6 * allowed},
          {"checked_us", 1e6 * Median(seconds[2])},
          {"more_than_checked_us", 1e6 * Median(more_than_checked)},
          {"met", Median(more) <= allowed}};
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
      const auto buckets = BucketsOf(model, options);
      const auto session = Must(GradientSession::Open(options, model.Specs()));
      BareNccl nccl(*session, rig.device(), buckets);
      Row row = {{"benchmark", "gpu_engine"},
                 {"model", model.name},
                 {"ranks", options.size},
                 {"theta_mib", mib},
                 {"buckets", buckets.size()}};
      row.update(Measure(*session, nccl, rig, program.rig.rounds, steps));
      if (options.rank == 0) report(row);
    }
  });
}
