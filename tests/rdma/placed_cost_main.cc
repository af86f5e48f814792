// placed_cost CALLS: makes small allreduces by placed messages among 8 ranks of
// this thread, on fake devices. callgrind counts what rank 0 executes in them,
// without what happens inside the devices and the kernels that add elements;
// placed_cost_test.sh says how. Prints how often rank 0 allocated and locked
// in the second half of the calls, outside those devices and kernels.
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/done.h"
#include "gradientflow/base/secret.h"
#include "gradientflow/collectives/executor.h"
#include "gradientflow/collectives/placed_layout.h"
#include "kernels/kernels.h"
#include "tests/base/heap_count.h"
#include "tests/base/lock_count.h"
#include "tests/rdma/fake_verbs.h"
#include "transports/fabric.h"
#include "transports/poller.h"
#include "transports/rdma/rdma_endpoint.h"

namespace gradientflow::testing {
namespace {

constexpr int kRanks = 8;
constexpr std::size_t kElements = 16 * kRanks;

// What this thread has done so far.
struct Counts {
  std::uint64_t allocations = 0;
  std::uint64_t locks = 0;
};
Counts CountsNow() { return {HeapAllocations(), LocksTaken()}; }

// Adds what is done in its scope.
class Counter {
 public:
  explicit Counter(Counts* to) : to_(to), before_(CountsNow()) {}
  ~Counter() {
    const Counts now = CountsNow();
    to_->allocations += now.allocations - before_.allocations;
    to_->locks += now.locks - before_.locks;
  }
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;

 private:
  Counts* const to_;
  const Counts before_;
};

// The functions of the devices and the kernels. Rank 0 calls them by way of
// Outside::Call(), by whose name callgrind knows where it must not count.
template <typename Table>
Table real;
bool counting = false;
Counts outside;
template <auto kMember>
struct Outside;
template <typename Table, typename R, typename... Args,
          R (*Table::*kMember)(Args...)>
struct Outside<kMember> {
  [[gnu::noinline]] static R Call(Args... args) {
    const Counter count(&outside);
    return (real<Table>.*kMember)(args...);
  }
  static R Enter(Args... args) {
    return counting ? Call(args...) : (real<Table>.*kMember)(args...);
  }
};
template <typename Table, auto... kMembers>
void Mark(Table* table) {
  real<Table> = *table;
  ((table->*kMembers = Outside<kMembers>::Enter), ...);
}

std::shared_ptr<const VerbsApi> MarkedDevices(const VerbsApi& api) {
  auto marked = std::make_shared<VerbsApi>(api);
  Mark<VerbsApi, &VerbsApi::post_send, &VerbsApi::post_recv, &VerbsApi::poll_cq,
       &VerbsApi::req_notify_cq, &VerbsApi::get_cq_event,
       &VerbsApi::ack_cq_events>(marked.get());
  return marked;
}

const kernels::CpuKernelTable& MarkedKernels() {
  static const kernels::CpuKernelTable table = [] {
    kernels::CpuKernelTable marked = kernels::CpuKernels();
    Mark<kernels::KernelTable, &kernels::KernelTable::convert,
         &kernels::KernelTable::reduce_many,
         &kernels::KernelTable::find_nonfinite>(&marked);
    return marked;
  }();
  return table;
}

struct Rank {
  std::unique_ptr<Endpoint> endpoint;
  std::unique_ptr<Fabric> fabric;
  std::unique_ptr<Executor> executor;
  CollectiveCall call;
  bool done = false;
};

class Job {
 public:
  Job() {
    for (int r = 0; r < kRanks; ++r) Open(r);
    std::vector<std::thread> threads;
    for (int r = 0; r < kRanks; ++r) {
      threads.emplace_back([this, r] { Connect(r); });
    }
    for (std::thread& thread : threads) thread.join();
    for (int r = 0; r < kRanks; ++r) Prepare(r);
  }
  ~Job() {
    for (Rank& rank : ranks_) rank.executor.reset();
    for (Rank& rank : ranks_) rank.fabric.reset();
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Rank 0 has its turn whenever all others wait for it.
  void Allreduce() {
    for (Rank& rank : ranks_) rank.done = false;
    for (int r = 1; r < kRanks; ++r) Start(At(r));
    LetOthersMove();
    Count(&CountedStart);
    while (!At(0).done) {
      Count(&CountedPoll);
      LetOthersMove();
    }
    while (!AllDone()) LetOthersMove();
  }
  // What rank 0 has done, with what happens outside.
  const Counts& counts() const { return counts_; }

 private:
  Rank& At(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  void Open(int r) {
    const ExecutorOptions defaults;
    TransportOptions options;
    options.socket_ifname = "lo";
    options.rank = r;
    options.ranks = kRanks;
    options.placed_slot_bytes = PlacedSlotBytes(kRanks, defaults.segment_bytes,
                                                defaults.segments_in_flight);
    options.placed_notices = PlacedNotices(kRanks, defaults.segment_bytes,
                                           defaults.segments_in_flight);
    const auto api = r > 0 ? fake_.api(r) : MarkedDevices(*fake_.api(0));
    At(r).endpoint = OpenRdma(options, api).value();
    At(r).fabric = std::make_unique<Fabric>(r, kRanks, clock_,
                                            std::move(Poller::Create()).value(),
                                            FabricOptions());
  }

  void Connect(int r) {
    ConnectArgs args;
    args.rank = r;
    args.size = kRanks;
    for (const Rank& rank : ranks_) {
      args.addresses.push_back(rank.endpoint->address());
    }
    args.secret = HmacSha256("4711", "");
    args.clock = &clock_;
    args.deadline = clock_.Now() + std::chrono::seconds(60);
    args.poller = &At(r).fabric->poller();
    args.events = At(r).fabric.get();
    At(r).fabric->Connect(At(r).endpoint->Connect(args).value());
  }

  void Prepare(int r) {
    Rank& rank = At(r);
    CallGroup group;
    group.rank = r;
    group.size = kRanks;
    group.all_place = true;
    for (int host = 0; host < kRanks; ++host) {
      group.topology.host.push_back(host);
    }
    RemotePlaces* const places = rank.endpoint->places();
    rank.executor = std::make_unique<Executor>(
        ExecutorArgs{rank.fabric.get(), nullptr,
                     r > 0 ? &kernels::CpuKernels() : &MarkedKernels(), &clock_,
                     nullptr, nullptr, places},
        group, TypicalCostModels(), ExecutorOptions());
    rank.call.output = places->Allocate(kElements * sizeof(float)).value().data;
    rank.call.count = kElements;
    rank.call.algorithm = &allreduce::kGdraa;
  }

  static void Start(Rank& rank) {
    rank.executor->Start(rank.call, {[](void* self, std::uint64_t,
                                        std::uint32_t, const Status& status) {
                                       if (!status.ok()) std::abort();
                                       *static_cast<bool*>(self) = true;
                                     },
                                     &rank.done, 0});
  }
  void Count(void (*work)(Rank&)) {
    const Counter count(&counts_);
    counting = true;
    work(At(0));
    counting = false;
  }
  // By these names callgrind knows where it must count.
  [[gnu::noinline]] static void CountedStart(Rank& rank) { Start(rank); }
  [[gnu::noinline]] static void CountedPoll(Rank& rank) {
    PollTogether(*rank.executor, *rank.fabric);
  }

  void LetOthersMove() {
    bool moved = true;
    while (std::exchange(moved, false)) {
      for (int r = 1; r < kRanks; ++r) {
        moved |= PollTogether(*At(r).executor, *At(r).fabric);
      }
    }
  }
  bool AllDone() const {
    for (const Rank& rank : ranks_) {
      if (!rank.done) return false;
    }
    return true;
  }

  const SteadyClock clock_;
  FakeVerbs fake_{kRanks};
  std::array<Rank, kRanks> ranks_;
  Counts counts_;
};

Counts CountsOf(const Job& job) {
  return {job.counts().allocations - outside.allocations,
          job.counts().locks - outside.locks};
}

}  // namespace
}  // namespace gradientflow::testing

int main(int argc, char** argv) {
  using namespace gradientflow::testing;  // NOLINT: of this file alone.
  if (argc != 2) return 2;
  const int calls = std::atoi(argv[1]);
  Job job;
  Counts before;
  for (int i = 0; i < calls; ++i) {
    if (i == calls / 2) before = CountsOf(job);
    job.Allreduce();
  }
  const Counts counts = CountsOf(job);
  std::printf(
      "allocations %llu, locks %llu; of the devices %llu and %llu\n",
      static_cast<unsigned long long>(counts.allocations - before.allocations),
      static_cast<unsigned long long>(counts.locks - before.locks),
      static_cast<unsigned long long>(outside.allocations),
      static_cast<unsigned long long>(outside.locks));
  return 0;
}
