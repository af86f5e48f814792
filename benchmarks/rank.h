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
// Medians, tables and pictures are the driver's.
namespace gradientflow::benchmarks {

using Json = nlohmann::json;

// The main() of a rank program: parses the job, argv[1], and the options in the
// environment, runs `rank_main` and writes what it returns to standard output.
// Returns the exit status: 1 after an error, which is said on standard error.
// Values of the wrong type in the job are such errors, too.
using RankFunction =
    std::function<Result<Json>(const Json& job, const Options& options)>;
int RunRank(int argc, char** argv, const RankFunction& rank_main);

// Opens a session with `options`, changed by `settings`: an object of the
// settings' names and texts, as settings.md lists them.
Result<std::unique_ptr<GradientSession>> OpenSession(
    Options options, const Json& settings,
    const std::vector<TensorSpec>& tensors);

// The collectives that benchmarks need besides what they measure. All ranks
// call; each blocks until all have.
Status Barrier(GradientSession& session);
Result<std::int64_t> MaxOverRanks(GradientSession& session, std::int64_t mine);
// kDataLoss, which names a rank, unless all ranks bring the same number.
Status ExpectSame(GradientSession& session, std::uint64_t mine);

// FNV-1a over bytes: `hash` of what came before, and the result.
inline constexpr std::uint64_t kHashSeed = 0xcbf29ce484222325;
std::uint64_t HashBytes(std::uint64_t hash, const void* data,
                        std::size_t bytes);

}  // namespace gradientflow::benchmarks
