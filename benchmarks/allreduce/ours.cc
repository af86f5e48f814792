#include <chrono>
#include <cstring>
#include <utility>

#include "benchmarks/allreduce/pattern.h"
#include "benchmarks/allreduce/workers.h"
#include "gradientflow/base/clock.h"
#include "gradientflow/session.h"

namespace gradientflow::benchmarks {
namespace {

class Ours final : public Worker {
 public:
  Ours(std::unique_ptr<GradientSession> session, std::size_t most_bytes,
       bool plain)
      : session_(std::move(session)) {
    if (plain) heap_.resize(most_bytes);
  }

  Status Allocate(std::size_t most_bytes) {
    if (!heap_.empty()) {
      data_ = heap_.data();
      return Status();
    }
    const Result<BufferView> view =
        session_->communicator().AllocateShared(most_bytes);
    if (!view.ok()) return view.status();
    data_ = view.value().data;
    return Status();
  }

  Result<Outcome> Run(const Batch& batch) override;

 private:
  Status Check(const CollectiveCall& call, std::size_t bytes, Outcome* outcome);
  Status Barrier();

  std::unique_ptr<GradientSession> session_;
  std::vector<std::byte> heap_;
  std::byte* data_ = nullptr;
};

Status Ours::Barrier() {
  CollectiveCall barrier;
  barrier.kind = CollectiveKind::kBarrier;
  return session_->communicator().Run(barrier);
}

Status Ours::Check(const CollectiveCall& call, std::size_t bytes,
                   Outcome* outcome) {
  const Pattern pattern(call.dtype, call.op, session_->size());
  pattern.Fill(session_->rank(), call.count, data_);
  GF_RETURN_IF_ERROR(session_->communicator().Run(call));
  outcome->wrong = pattern.CountWrong(call.count, data_);
  GF_RETURN_IF_ERROR(Barrier());  // All have looked at it.
  std::memset(data_, 0, bytes);
  return Status();
}

Result<Outcome> Ours::Run(const Batch& batch) {
  CollectiveCall call;
  call.output = data_;
  call.count = batch.count();
  call.dtype = batch.dtype;
  call.wire = batch.wire;
  call.op = batch.op;
  call.algorithm = batch.algorithm;
  Outcome outcome;
  if (batch.check) {
    GF_RETURN_IF_ERROR(Check(call, batch.bytes, &outcome));
    return outcome;
  }
  for (int i = 0; i < batch.warmup; ++i) {
    GF_RETURN_IF_ERROR(session_->communicator().Run(call));
  }
  GF_RETURN_IF_ERROR(Barrier());
  const SteadyClock clock;
  const Clock::Time begin = clock.Now();
  for (int i = 0; i < batch.iterations; ++i) {
    GF_RETURN_IF_ERROR(session_->communicator().Run(call));
  }
  outcome.seconds = Seconds(clock.Now() - begin) / batch.iterations;
  return outcome;
}

Result<std::unique_ptr<Worker>> Make(const GroupSettings& settings, int rank) {
  Options options;
  options.rank = rank;
  options.size = settings.ranks;
  options.rendezvous = "file://" + settings.folder + "/meet";
  options.job_token = settings.folder;
  options.fabric = settings.fabric;
  options.socket_ifname = "lo";
  auto session = GradientSession::Open(options, {});
  if (!session.ok()) return session.status();
  auto worker = std::make_unique<Ours>(std::move(session).value(),
                                       settings.most_bytes, settings.plain);
  GF_RETURN_IF_ERROR(worker->Allocate(settings.most_bytes));
  return std::unique_ptr<Worker>(std::move(worker));
}

}  // namespace

Result<std::unique_ptr<Group>> StartOurs(const GroupSettings& settings) {
  const std::string name = "gradientflow";
  std::vector<Program> programs;
  for (int rank = 0; rank < settings.ranks; ++rank) {
    programs.push_back({[&settings, name, rank] {
                          return Serve(SocketPath(settings.folder, name),
                                       [&] { return Make(settings, rank); });
                        },
                        {}});
  }
  return Group::Start(settings.folder, name, settings.ranks, programs);
}

}  // namespace gradientflow::benchmarks
