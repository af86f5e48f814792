// One rank of a job with faults; faults.py kills and stops such ranks.
//
// Job: {"board": a descriptor of memory for a RankReport per rank, "fabric",
// "settings": {"rendezvous", ...}}. The rank writes to its report where it is
// and how it ended; the answer is always null.
#include <sys/mman.h>

#include "benchmarks/faults/job.h"
#include "benchmarks/rank.h"
#include "gradientflow/config/settings_table.h"

namespace gradientflow::faults {
namespace {

using benchmarks::Json;

Result<Json> RankMain(const Json& job, const Options& who) {
  Options options;
  for (const auto& [name, text] : job.at("settings").items()) {
    GF_RETURN_IF_ERROR(SetOption(&options, name, text.get<std::string>()));
  }
  JobConfig config;
  config.ranks = who.size;
  config.fabric = *ParseJobFabric(job.at("fabric").get<std::string>());
  config.rendezvous = options.rendezvous;
  config.bucket_bytes = options.bucket_bytes;
  config.wire_dtype = options.wire_dtype;
  config.heartbeat_timeout_seconds = options.heartbeat_timeout_seconds;
  config.join_timeout_seconds = options.join_timeout_seconds;
  const std::size_t bytes =
      sizeof(RankReport) * static_cast<std::size_t>(who.size);
  void* const board = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                           job.at("board").get<int>(), 0);
  if (board == MAP_FAILED) {
    return Status(StatusCode::kInternal, "the board cannot be mapped");
  }
  static_cast<void>(
      Train(config, who.rank, static_cast<RankReport*>(board) + who.rank));
  return Json();
}

}  // namespace
}  // namespace gradientflow::faults

int main(int argc, char** argv) {
  return gradientflow::benchmarks::RunRank(argc, argv,
                                           &gradientflow::faults::RankMain);
}
