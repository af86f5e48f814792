// Some ranks of a job, as threads of one process: `rank RANKS`. The variables
// GRADIENTFLOW_RANK and _SIZE number the processes; process p of n has the
// ranks p, p + n, p + 2n and so on of the job's RANKS. Orders:
//
//   "open"         opens a communicator per rank
//   "collectives"  runs some, which may need more links, and checks their
//                  results
//   "close"        closes the communicators
//   "count"        answers with the links of the rank that has most, and with
//                  the number of files that the process has open
//
// The other answers are the seconds of the slowest rank.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/lib/rank.h"
#include "benchmarks/lib/serve.h"
#include "gradientflow/base/clock.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/communicator/core.h"

namespace gradientflow::benchmarks {
namespace {

// A short maximum, a block from each rank, and a long sum.
void RunCollectives(Communicator& comm) {
  const int size = comm.size();
  bool right = MaxOverRanks(comm, comm.rank()) == size - 1;
  ExpectSame(comm, 7);
  std::vector<float> sum(100000, static_cast<float>(comm.rank()));
  CollectiveCall call;
  call.op = ReduceOp::kSum;
  call.output = sum.data();
  call.count = sum.size();
  Must(comm.Run(call));
  const int total = size * (size - 1) / 2;
  right &= sum == std::vector<float>(sum.size(), static_cast<float>(total));
  if (right) return;
  throw std::runtime_error("a collective's result is wrong");
}

int LinksOf(Communicator& comm) {
  int links = 0;
  const CommunicatorCore& core = comm.core();
  core.progress().Do([&] {
    for (int r = 0; r < comm.size(); ++r) {
      links += core.fabric().link(r) != nullptr ? 1 : 0;
    }
  });
  return links;
}

class Process {
 public:
  Process(Options options, int ranks) {
    for (const int processes = options.size; options.rank < ranks;
         options.rank += processes) {
      options.size = ranks;
      options_.push_back(options);
    }
    communicators_.resize(options_.size());
  }

  std::string Do(const std::string& order) {
    if (order == "count") return Count();
    return StrCat(OnEachRank([&](std::size_t i) {
      auto& communicator = communicators_[i];
      if (order == "open") {
        communicator = Must(Communicator::Open(options_[i]));
      } else if (order == "collectives") {
        RunCollectives(*communicator);
      } else {
        communicator.reset();
      }
    }));
  }

 private:
  // Returns the seconds of the slowest rank. What a rank throws ends the
  // process, since the others would wait for that rank.
  double OnEachRank(const std::function<void(std::size_t)>& work) const {
    std::vector<std::thread> threads;
    const Clock::Time begin = SteadyClock().Now();
    for (std::size_t i = 0; i < options_.size(); ++i) {
      threads.emplace_back(work, i);
    }
    for (std::thread& thread : threads) thread.join();
    return Seconds(SteadyClock().Now() - begin);
  }

  std::string Count() const {
    int links = 0;
    for (const auto& communicator : communicators_) {
      if (communicator) links = std::max(links, LinksOf(*communicator));
    }
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return StrCat(links, " ", std::distance(begin(files), end(files)));
  }

  std::vector<Options> options_;  // By rank of this process.
  std::vector<std::shared_ptr<Communicator>> communicators_;
};

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  using namespace gradientflow::benchmarks;  // NOLINT: a main().
  if (argc != 2) return 2;
  Process process(Must(gradientflow::Options::FromEnv(environ)),
                  std::atoi(argv[1]));
  return Serve([&](const std::string& order) { return process.Do(order); });
}
