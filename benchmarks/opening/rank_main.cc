// One rank that opens a communicator. The job is {"begin": when, in seconds of
// CLOCK_MONOTONIC}; the result is how many seconds after that it was open.
#include <chrono>
#include <thread>

#include "benchmarks/rank.h"
#include "gradientflow/communicator/communicator.h"

namespace gradientflow::benchmarks {
namespace {

Result<Json> Open(const Json& job, const Options& options) {
  using Seconds = std::chrono::duration<double>;
  const auto begin = std::chrono::steady_clock::time_point(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(
          Seconds(job.at("begin").get<double>())));
  if (std::chrono::steady_clock::now() > begin) {
    return Status(StatusCode::kFailedPrecondition,
                  "this process came up after the ranks were to begin");
  }
  std::this_thread::sleep_until(begin);
  const auto communicator = Communicator::Open(options);
  if (!communicator.ok()) return communicator.status();
  const Seconds taken = std::chrono::steady_clock::now() - begin;
  // The last rank is open, too: it must not wait for ranks that have left.
  CollectiveCall barrier;
  barrier.kind = CollectiveKind::kBarrier;
  GF_RETURN_IF_ERROR(communicator.value()->Run(barrier));
  return Json(taken.count());
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  using namespace gradientflow;  // NOLINT: a main().
  return benchmarks::RunRank(argc, argv, benchmarks::Open);
}
