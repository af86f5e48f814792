// One rank of a job with faults; faults.py kills and stops such ranks.
//
// Job: {"board": a descriptor of memory for a RankReport per rank, "fabric",
// "settings": {"rendezvous", ...}}. The rank writes to its report where it is
// and how it ended; the answer is always null.
#include <sys/mman.h>

#include <stdexcept>
#include <string>

#include "benchmarks/faults/job.h"
#include "benchmarks/lib/rank.h"
#include "gradientflow/config/settings_table.h"

namespace gradientflow::benchmarks {

Json RankMain(const Json& job, const Options& who) {
  faults::JobConfig config;
  config.ranks = who.size;
  config.fabric = job.at("fabric");
  for (const auto& [name, text] : job.at("settings").items()) {
    Must(SetOption(&config.options, name, text.get<std::string>()));
  }
  const std::size_t bytes =
      sizeof(faults::RankReport) * static_cast<std::size_t>(who.size);
  void* const board = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                           job.at("board").get<int>(), 0);
  if (board == MAP_FAILED) throw std::runtime_error("cannot map the board");
  static_cast<void>(Train(config, who.rank,
                          static_cast<faults::RankReport*>(board) + who.rank));
  return Json();
}

}  // namespace gradientflow::benchmarks
