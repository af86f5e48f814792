// One rank of a small training job whose every result is known, for
// benchmarks/faults/trial.py, which kills and stops such ranks. Job: {"board":
// a descriptor of memory for a RankReport per rank, "settings" of the library}.
// The rank writes to its report where it is and how it ended.
#include <sys/mman.h>

#include <stdexcept>
#include <string>

#include "benchmarks/lib/rank.h"
#include "gradientflow/config/settings_table.h"
#include "tests/faults/job.h"

namespace gradientflow::benchmarks {

Json RankMain(const Json& job, const Options& who) {
  faults::JobConfig config;
  config.ranks = who.size;
  const Json& settings = job.at("settings");
  config.fabric = settings.value("fabric", "mixed");
  for (const auto& [name, text] : settings.items()) {
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
