#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "benchmarks/lib/must.h"
#include "gradientflow/config/options.h"
#include "gradientflow/session.h"
#include "nlohmann/json.hpp"

// What the rank programs of the benchmarks share. A driver in Python
// (benchmarks/lib/ranks.py) starts one process per rank:
//
//   driver --- GRADIENTFLOW_* variables, a job in JSON ---> rank program
//   driver <-- its samples in JSON, or an exit status of 1 --- rank program
//
// The driver makes medians, tables and pictures.
namespace gradientflow::benchmarks {

using Json = nlohmann::json;

// What a program with a job defines; the main() in :rank_main calls it with the
// job, argv[1], and the options in the environment, and writes the result to
// standard output. An exception is written to standard error; the exit status
// is then 1.
Json RankMain(const Json& job, const Options& options);

// Opens a session with `options`, changed by `settings`: an object of names and
// texts of settings, as settings.md lists them.
std::unique_ptr<GradientSession> OpenSession(
    Options options, const Json& settings,
    const std::vector<TensorSpec>& tensors);

// Collectives that benchmarks need apart from those that they measure. All
// ranks call; each call blocks until all ranks have called. Errors are thrown
// (must.h).
void Barrier(Communicator& communicator);
std::int64_t MaxOverRanks(Communicator& communicator, std::int64_t mine);
// Throws, naming a rank, unless all ranks pass the same number.
void ExpectSame(Communicator& communicator, std::uint64_t mine);

}  // namespace gradientflow::benchmarks
