// rdma_loop SECONDS: a rank that makes allreduces, and checks each, until the
// time is over or the job ends. Settings are in GRADIENTFLOW_* variables.
// Prints a line for each event, with the time in seconds:
//
//   <time> open | <time> done CALLS | <time> wrong ... | <time> ended CODE: why
//
// The exit status is 0 after `done`, 3 after `ended`, and 1 otherwise.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/communicator/communicator.h"
#include "gradientflow/config/options.h"

extern char** environ;

namespace gradientflow {
namespace {

void Say(const std::string& what) {
  const double now = std::chrono::duration<double>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
  std::printf("%.3f %s\n", now, what.c_str());
  std::fflush(stdout);
}

int Ended(const Status& why) {
  Say("ended " + why.ToString());
  return 3;
}

// Small integers, so that sums are exact in every order.
float ValueOf(int rank, std::uint64_t call, std::size_t i) {
  const std::uint64_t mixed =
      static_cast<std::uint64_t>(rank) * 31 + call * 7 + i * 13;
  return static_cast<float>(mixed % 101) - 50;
}

// Returns whether the sum over all ranks is right.
bool IsSum(const std::vector<float>& data, int size, std::uint64_t call) {
  for (std::size_t i = 0; i < data.size(); ++i) {
    float sum = 0;
    for (int r = 0; r < size; ++r) sum += ValueOf(r, call, i);
    if (data[i] != sum) return false;
  }
  return true;
}

// Returns whether one more call comes; all ranks agree.
Result<bool> GoesOn(Communicator* comm, bool wanted) {
  std::int32_t least = wanted ? 1 : 0;
  CollectiveCall call;
  call.output = &least;
  call.count = 1;
  call.dtype = call.wire = DType::kInt32;
  call.op = ReduceOp::kMin;
  GF_RETURN_IF_ERROR(comm->Run(call));
  return least != 0;
}

int Main(double seconds) {
  const auto options = Options::FromEnv(environ);
  if (!options.ok()) return Ended(options.status());
  const auto opened = Communicator::Open(options.value());
  if (!opened.ok()) return Ended(opened.status());
  Communicator* const comm = opened.value().get();
  Say("open");
  std::mt19937 random(4711);  // The same on all ranks.
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (std::uint64_t call = 0;; ++call) {
    std::vector<float> data(random() % (std::size_t{1} << (random() % 17)) + 1);
    for (std::size_t i = 0; i < data.size(); ++i) {
      data[i] = ValueOf(comm->rank(), call, i);
    }
    CollectiveCall sum;
    sum.output = data.data();
    sum.count = data.size();
    if (const Status ran = comm->Run(sum); !ran.ok()) return Ended(ran);
    if (!IsSum(data, comm->size(), call)) {
      Say("wrong in call " + std::to_string(call));
      return 1;
    }
    const auto more = GoesOn(comm, std::chrono::steady_clock::now() < until);
    if (!more.ok()) return Ended(more.status());
    if (!more.value()) {
      Say("done " + std::to_string(call + 1));
      return 0;
    }
  }
}

}  // namespace
}  // namespace gradientflow

int main(int argc, char** argv) {
  return argc == 2 ? gradientflow::Main(std::atof(argv[1])) : 1;
}
