#include "benchmarks/lib/rank.h"

#include <algorithm>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/config/settings_table.h"

namespace gradientflow::benchmarks {

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

void ExpectSame(Communicator& communicator, std::uint64_t mine) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(communicator.size()));
  CollectiveCall call;
  call.kind = CollectiveKind::kAllgather;
  call.input = &mine;
  call.output = all.data();
  call.count = 1;
  call.dtype = call.wire = DType::kInt64;
  Must(communicator.Run(call));
  const auto other = std::find_if(all.begin(), all.end(),
                                  [&](auto theirs) { return theirs != mine; });
  if (other == all.end()) return;
  throw std::runtime_error(StrCat("rank ", other - all.begin(),
                                  " got other bits than rank ",
                                  communicator.rank()));
}

}  // namespace gradientflow::benchmarks
