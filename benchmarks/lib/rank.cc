#include "benchmarks/lib/rank.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>

#include "benchmarks/lib/paced_sockets.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/config/settings_table.h"

namespace gradientflow::benchmarks {

int RunRank(int argc, char** argv, const RankFunction& rank_main) {
  std::string who = argv[0];
  try {
    if (argc != 2) throw std::invalid_argument("expected a job in JSON");
    const Options options = Must(Options::FromEnv(environ));
    who += StrCat(": rank ", options.rank);
    const Json job = Json::parse(argv[1]);
    PaceSockets(job.value("bytes_per_second", std::uint64_t{0}));
    std::printf("%s\n", rank_main(job, options).dump().c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", who.c_str(), error.what());
    return 1;
  }
}

std::unique_ptr<GradientSession> OpenSession(
    Options options, const Json& settings,
    const std::vector<TensorSpec>& tensors) {
  for (const auto& [name, text] : settings.items()) {
    Must(SetOption(&options, name, text.get<std::string>()));
  }
  return Must(GradientSession::Open(options, tensors));
}

void Barrier(Communicator& communicator) {
  CollectiveCall barrier;
  barrier.kind = CollectiveKind::kBarrier;
  Must(communicator.Run(barrier));
}

std::int64_t MaxOverRanks(Communicator& communicator, std::int64_t mine) {
  CollectiveCall call;
  call.kind = CollectiveKind::kAllreduce;
  call.output = &mine;
  call.count = 1;
  call.dtype = call.wire = DType::kInt64;
  call.op = ReduceOp::kMax;
  Must(communicator.Run(call));
  return mine;
}

Status ExpectSame(Communicator& communicator, std::uint64_t mine) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(communicator.size()));
  CollectiveCall call;
  call.kind = CollectiveKind::kAllgather;
  call.input = &mine;
  call.output = all.data();
  call.count = 1;
  call.dtype = call.wire = DType::kInt64;
  GF_RETURN_IF_ERROR(communicator.Run(call));
  const auto other = std::find_if(all.begin(), all.end(),
                                  [&](auto theirs) { return theirs != mine; });
  if (other == all.end()) return Status();
  return Status(StatusCode::kDataLoss,
                StrCat("rank ", other - all.begin(),
                       " got other bits than rank ", communicator.rank()));
}

}  // namespace gradientflow::benchmarks
