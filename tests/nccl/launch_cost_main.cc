// What it costs the host to give NCCL a collective, for a communicator that is
// non-blocking and for one that is blocking, on libfake_nccl.so. What the fake
// does for a call is a lock and a queue, so this is about how a call gets to
// its stream: on the caller's thread, on one thread for all calls, or on a
// thread for each call. The last is what NCCL does for a non-blocking
// communicator.
//
//   bazel run -c opt //tests/nccl:launch_cost -- [calls [way]]
//
// With a number of a way (0 to 2) it takes that way once: strace -fc of two
// numbers of calls then tells the system calls of one.
#include <sys/resource.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <thread>

#include "gradientflow/nccl/abi.h"
#include "tests/device/fake_device.h"
#include "tests/nccl/nccl_ranks.h"

namespace gradientflow::testing {
namespace {

constexpr int kRounds = 5;
constexpr int kWarmUp = 500;
// The stream is waited for now and then, untimed, as slots of a queue would.
constexpr int kBetweenWaits = 50;

struct Way {
  const char* name;
  bool blocking;
  bool thread_per_call;
};
constexpr Way kWays[] = {
    {"blocking, caller's thread", true, false},
    {"non-blocking, one thread for all", false, false},
    {"non-blocking, a thread per call", false, true},
};

double Seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * now.tv_nsec;
}

struct Cost {
  double returned = 0;  // Seconds until the call returned,
  double accepted = 0;  // until NCCL had accepted it,
  double own_cpu = 0;   // of the caller's thread meanwhile,
  double all_cpu = 0;   // and of all threads.
  long switches = 0;    // Voluntary ones, of all threads.
  long polls = 0;
};

long Switches() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nvcsw;
}

// Ends the process if something fails: a benchmark of that would mean nothing.
void Must(bool fine, const char* what) {
  if (fine) return;
  std::fprintf(stderr, "launch_cost: %s failed\n", what);
  std::exit(1);
}

// Returns how often it asked.
long AwaitReady(const NcclApi& api, nccl::Comm comm) {
  long polls = 0;
  auto state = nccl::ReturnCode::kInProgress;
  while (state == nccl::ReturnCode::kInProgress) {
    ++polls;
    Must(api.comm_get_async_error(comm, &state) == nccl::ReturnCode::kSuccess,
         "ncclCommGetAsyncError");
    if (state == nccl::ReturnCode::kInProgress) std::this_thread::yield();
  }
  Must(state == nccl::ReturnCode::kSuccess, "NCCL");
  return polls;
}

class Bench {
 public:
  explicit Bench(const Way& way) {
    nccl_.Set(FakeNcclMode::kThreadPerCall, way.thread_per_call ? 1 : 0);
    stream_ = device_.NewStream(/*urgent=*/false).value();
    nccl::UniqueId id = {};
    nccl::Config config;
    config.blocking = way.blocking ? 1 : 0;
    api().get_unique_id(&id);
    const auto code = api().comm_init_rank_config(&comm_, 1, id, 0, &config);
    Must(code == nccl::ReturnCode::kSuccess ||
             code == nccl::ReturnCode::kInProgress,
         "ncclCommInitRankConfig");
    AwaitReady(api(), comm_);
  }
  ~Bench() {
    api().comm_finalize(comm_);
    AwaitReady(api(), comm_);
    api().comm_destroy(comm_);
  }

  Cost Run(int calls) {
    Cost cost;
    for (int call = 0; call < calls; ++call) {
      Once(&cost);
      if (call % kBetweenWaits == 0) Must(stream_->Synchronize().ok(), "wait");
    }
    Must(stream_->Synchronize().ok(), "wait");
    return cost;
  }

 private:
  const NcclApi& api() const { return *nccl_.api(); }
  void Once(Cost* cost) {
    const long switches = Switches();
    const double all = Seconds(CLOCK_PROCESS_CPUTIME_ID);
    const double own = Seconds(CLOCK_THREAD_CPUTIME_ID);
    const double begin = Seconds(CLOCK_MONOTONIC);
    const auto code =
        api().all_reduce(&value_, &value_, 1, nccl::DataType::kFloat32,
                         nccl::RedOp::kSum, comm_, stream_->native());
    const double returned = Seconds(CLOCK_MONOTONIC);
    if (code == nccl::ReturnCode::kInProgress) {
      cost->polls += AwaitReady(api(), comm_);
    } else {
      Must(code == nccl::ReturnCode::kSuccess, "ncclAllReduce");
    }
    const double end = Seconds(CLOCK_MONOTONIC);
    cost->own_cpu += Seconds(CLOCK_THREAD_CPUTIME_ID) - own;
    cost->all_cpu += Seconds(CLOCK_PROCESS_CPUTIME_ID) - all;
    cost->returned += returned - begin;
    cost->accepted += end - begin;
    cost->switches += Switches() - switches;
  }

  FakeNccl nccl_;
  FakeDevice device_;
  std::unique_ptr<Stream> stream_;
  nccl::Comm comm_ = nullptr;
  float value_ = 1;
};

void Print(const Way& way, const Cost& cost, int calls) {
  const double us = 1e6 / calls;
  std::printf("%-33s %8.1f %8.1f %8.1f %8.1f %8.1f %8.1f\n", way.name,
              cost.returned * us, cost.accepted * us, cost.own_cpu * us,
              cost.all_cpu * us, static_cast<double>(cost.switches) / calls,
              static_cast<double>(cost.polls) / calls);
}

void Measure(const Way& way, int calls) {
  Bench bench(way);
  bench.Run(kWarmUp);
  Print(way, bench.Run(calls), calls);
}

int Main(int calls, int way) {
  std::printf("%-33s %8s %8s %8s %8s %8s %8s\n", "us per call", "returned",
              "accepted", "own cpu", "all cpu", "switches", "polls");
  if (way >= 0) {
    Measure(kWays[way], calls);
    return 0;
  }
  for (int round = 0; round < kRounds; ++round) {
    for (const Way& each : kWays) Measure(each, calls);
  }
  return 0;
}

}  // namespace
}  // namespace gradientflow::testing

int main(int argc, char** argv) {
  const int calls = argc > 1 ? std::atoi(argv[1]) : 5000;
  const int way = argc > 2 ? std::atoi(argv[2]) : -1;
  if (calls > 0 && way < 3) return gradientflow::testing::Main(calls, way);
  std::fprintf(stderr, "launch_cost: expected a number of calls and a way\n");
  return 2;
}
