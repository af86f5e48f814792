#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "gradientflow/base/status.h"
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

// The main() of a rank program: parses the job, argv[1], and the options in the
// environment, runs `rank_main` and writes its result to standard output.
// Returns the exit status, which is 1 after an error; the error is written to
// standard error. A value of the wrong type in the job is such an error, too.
using RankFunction =
    std::function<Result<Json>(const Json& job, const Options& options)>;
int RunRank(int argc, char** argv, const RankFunction& rank_main);

// Opens a session with `options`, changed by `settings`: an object of names and
// texts of settings, as settings.md lists them.
Result<std::unique_ptr<GradientSession>> OpenSession(
    Options options, const Json& settings,
    const std::vector<TensorSpec>& tensors);

// Collectives that benchmarks need apart from those that they measure. All
// ranks call; each call blocks until all ranks have called.
Status Barrier(GradientSession& session);
Result<std::int64_t> MaxOverRanks(GradientSession& session, std::int64_t mine);
// kDataLoss, naming a rank, unless all ranks pass the same number.
Status ExpectSame(GradientSession& session, std::uint64_t mine);

// FNV-1a over bytes. `hash` is the result so far; returns the new result.
inline constexpr std::uint64_t kHashSeed = 0xcbf29ce484222325;
std::uint64_t HashBytes(std::uint64_t hash, const void* data,
                        std::size_t bytes);

}  // namespace gradientflow::benchmarks
