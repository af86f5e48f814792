#include <unistd.h>

#include <cstdio>
#include <exception>

#include "benchmarks/lib/paced_sockets.h"
#include "benchmarks/lib/rank.h"
#include "gradientflow/base/str_cat.h"

int main(int argc, char** argv) {
  using namespace gradientflow;              // NOLINT: a main().
  using namespace gradientflow::benchmarks;  // NOLINT: a main().
  std::string who = argv[0];
  try {
    if (argc != 2) throw std::invalid_argument("expected a job in JSON");
    const Options options = Must(Options::FromEnv(environ));
    who += StrCat(": rank ", options.rank);
    const Json job = Json::parse(argv[1]);
    PaceSockets(job.value("bytes_per_second", std::uint64_t{0}));
    std::printf("%s\n", RankMain(job, options).dump().c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", who.c_str(), error.what());
    return 1;
  }
}
