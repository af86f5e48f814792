#include "benchmarks/rank.h"

#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string>

#include "benchmarks/paced_sockets.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/config/settings_table.h"

namespace gradientflow::benchmarks {
namespace {

int Fail(const char* program, const std::string& why) {
  std::fprintf(stderr, "%s: %s\n", program, why.c_str());
  return 1;
}

}  // namespace

int RunRank(int argc, char** argv, const RankFunction& rank_main) try {
  if (argc != 2) return Fail(argv[0], "expected a job in JSON");
  const auto options = Options::FromEnv(environ);
  if (!options.ok()) return Fail(argv[0], options.status().ToString());
  const Json job = Json::parse(argv[1]);
  PaceSockets(job.value("bytes_per_second", std::uint64_t{0}));
  const auto result = rank_main(job, options.value());
  if (!result.ok()) {
    return Fail(argv[0], StrCat("rank ", options.value().rank, ": ",
                                result.status().ToString()));
  }
  std::printf("%s\n", result.value().dump().c_str());
  return 0;
} catch (const std::exception& error) {
  return Fail(argv[0], error.what());
}

Result<std::unique_ptr<GradientSession>> OpenSession(
    Options options, const Json& settings,
    const std::vector<TensorSpec>& tensors) {
  for (const auto& [name, text] : settings.items()) {
    GF_RETURN_IF_ERROR(SetOption(&options, name, text.get<std::string>()));
  }
  return GradientSession::Open(options, tensors);
}

Status Barrier(GradientSession& session) {
  CollectiveCall barrier;
  barrier.kind = CollectiveKind::kBarrier;
  return session.communicator().Run(barrier);
}

Result<std::int64_t> MaxOverRanks(GradientSession& session, std::int64_t mine) {
  CollectiveCall call;
  call.kind = CollectiveKind::kAllreduce;
  call.output = &mine;
  call.count = 1;
  call.dtype = call.wire = DType::kInt64;
  call.op = ReduceOp::kMax;
  GF_RETURN_IF_ERROR(session.communicator().Run(call));
  return mine;
}

Status ExpectSame(GradientSession& session, std::uint64_t mine) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(session.size()));
  CollectiveCall call;
  call.kind = CollectiveKind::kAllgather;
  call.input = &mine;
  call.output = all.data();
  call.count = 1;
  call.dtype = call.wire = DType::kInt64;
  GF_RETURN_IF_ERROR(session.communicator().Run(call));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == mine) continue;
    return Status(
        StatusCode::kDataLoss,
        StrCat("rank ", rank, " got other bits than rank ", session.rank()));
  }
  return Status();
}

std::uint64_t HashBytes(std::uint64_t hash, const void* data,
                        std::size_t bytes) {
  const auto* const begin = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; ++i) {
    hash = (hash ^ begin[i]) * 0x100000001b3;
  }
  return hash;
}

}  // namespace gradientflow::benchmarks
