// What it takes to open a job of many ranks over TCP, on one machine: the time,
// the links and the file descriptors of each rank. Ranks are threads of a few
// processes. Afterwards they run some collectives, whose results are checked,
// since these may need further links.
//
//   many_ranks --ranks 128 --connect needed
//   many_ranks --ranks 128 --connect all
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gradientflow/communicator/communicator.h"
#include "gradientflow/communicator/core.h"
#include "gradientflow/config/options.h"
#include "gradientflow/config/settings_table.h"

namespace gradientflow::benchmarks {
namespace {

struct Flags {
  int ranks = 128;
  int processes = 4;
  std::string connect = "needed";
};

enum Phase : int { kOpen, kCollectives, kClose };
constexpr int kPhases = 3;

// In memory that the processes share.
struct Report {
  // After each phase, and the most over the ranks.
  std::atomic<std::int64_t> most_ns[kPhases];
  std::atomic<int> most_links[kPhases];
  std::atomic<std::int64_t> descriptors[kPhases];  // The sum.
  std::atomic<int> arrived[2 * kPhases];
  std::atomic<int> failures;
};

template <typename Number>
void RaiseTo(std::atomic<Number>* most, Number seen) {
  Number before = most->load();
  while (before < seen && !most->compare_exchange_weak(before, seen)) {
  }
}

std::int64_t NowNs() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

// Waits until all ranks have come to this place.
void Meet(std::atomic<int>* arrived, int ranks) {
  arrived->fetch_add(1);
  while (arrived->load() < ranks) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
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

Status RunCollectives(Communicator& comm) {
  const int size = comm.size();
  for (const std::size_t count : {std::size_t{1}, std::size_t{100000}}) {
    std::vector<float> sum(count, static_cast<float>(comm.rank()));
    CollectiveCall call;
    call.op = ReduceOp::kSum;
    call.output = sum.data();
    call.count = count;
    GF_RETURN_IF_ERROR(comm.Run(call));
    const int total = size * (size - 1) / 2;
    const auto expected = static_cast<float>(total);
    if (std::any_of(sum.begin(), sum.end(),
                    [&](float value) { return value != expected; })) {
      return Status(StatusCode::kInternal, "the sum is wrong");
    }
  }
  std::vector<std::int32_t> all(static_cast<std::size_t>(size));
  const std::int32_t mine = comm.rank() * 3;
  CollectiveCall call;
  call.kind = CollectiveKind::kAllgather;
  call.dtype = call.wire = DType::kInt32;
  call.input = &mine;
  call.output = all.data();
  call.count = 1;
  GF_RETURN_IF_ERROR(comm.Run(call));
  for (int r = 0; r < size; ++r) {
    if (all[static_cast<std::size_t>(r)] != 3 * r) {
      return Status(StatusCode::kInternal, "an allgather is wrong");
    }
  }
  return Status();
}

Options OptionsOf(const Flags& flags, const std::string& folder, int rank) {
  Options options;
  options.rank = rank;
  options.size = flags.ranks;
  options.rendezvous = "file://" + folder;
  options.job_token = "many ranks";
  options.fabric = "tcp";
  options.socket_ifname = "lo";
  options.log_level = LogLevel::kError;
  options.join_timeout_seconds = 300;
  options.heartbeat_timeout_seconds = 120;
  const Status set = SetOption(&options, "connect", flags.connect);
  if (!set.ok()) std::fprintf(stderr, "%s\n", set.message().c_str());
  return options;
}

// `count_descriptors`: this rank counts for its process.
void Measure(Phase phase, std::int64_t since, Communicator* comm, int ranks,
             bool count_descriptors, Report* report) {
  RaiseTo(&report->most_ns[phase], NowNs() - since);
  Meet(&report->arrived[2 * phase], ranks);
  if (comm != nullptr) RaiseTo(&report->most_links[phase], LinksOf(*comm));
  if (count_descriptors) {
    const std::filesystem::directory_iterator open("/proc/self/fd");
    report->descriptors[phase].fetch_add(std::distance(begin(open), end(open)));
  }
  Meet(&report->arrived[2 * phase + 1], ranks);
}

Status RunRank(const Flags& flags, const std::string& folder, int rank,
               bool counts, Report* report) {
  std::int64_t begin = NowNs();
  auto comm = Communicator::Open(OptionsOf(flags, folder, rank));
  if (!comm.ok()) return comm.status();
  Measure(kOpen, begin, comm.value().get(), flags.ranks, counts, report);
  begin = NowNs();
  GF_RETURN_IF_ERROR(RunCollectives(*comm.value()));
  Measure(kCollectives, begin, comm.value().get(), flags.ranks, counts, report);
  begin = NowNs();
  comm = Status(StatusCode::kAborted, "closed");
  Measure(kClose, begin, nullptr, flags.ranks, counts, report);
  return Status();
}

// The ranks of one process: every `processes`-th. A rank that fails ends all,
// since the others would wait for it.
int RunProcess(const Flags& flags, const std::string& folder, int process,
               Report* report) {
  std::vector<std::thread> threads;
  for (int rank = process; rank < flags.ranks; rank += flags.processes) {
    threads.emplace_back([&, rank] {
      const Status status =
          RunRank(flags, folder, rank, rank == process, report);
      if (status.ok()) return;
      if (report->failures.fetch_add(1) == 0) {
        std::fprintf(stderr, "rank %d: %s\n", rank, status.message().c_str());
      }
      std::_Exit(1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}

void Print(const Flags& flags, const Report& report) {
  constexpr const char* kNames[] = {"open", "collectives", "close"};
  std::printf("%d ranks, connect=%s\n%-12s %10s %14s %22s\n", flags.ranks,
              flags.connect.c_str(), "after", "seconds", "links (most)",
              "descriptors (mean)");
  for (int phase = 0; phase < kPhases; ++phase) {
    std::printf("%-12s %10.3f %14d %22.1f\n", kNames[phase],
                static_cast<double>(report.most_ns[phase]) * 1e-9,
                report.most_links[phase].load(),
                static_cast<double>(report.descriptors[phase]) / flags.ranks);
  }
}

int Run(const Flags& flags) {
  std::string folder = "/tmp/gradientflow-ranks-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return 1;
  void* const shared = ::mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  auto* const report = new (shared) Report();
  std::vector<pid_t> children;
  for (int p = 0; p < flags.processes; ++p) {
    children.push_back(::fork());
    if (children.back() == 0) {
      std::_Exit(RunProcess(flags, folder, p, report));
    }
  }
  int failed = 0;
  for (int p = 0; p < flags.processes; ++p) {
    int how = 0;
    if (::wait(&how) < 0 || how == 0) continue;
    ++failed;
    for (const pid_t child : children) ::kill(child, SIGKILL);
  }
  std::filesystem::remove_all(folder);
  if (failed == 0) Print(flags, *report);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  gradientflow::benchmarks::Flags flags;
  CLI::App app("The time and the file descriptors that opening a job takes.");
  app.add_option("--ranks", flags.ranks)->check(CLI::Range(1, 4096));
  app.add_option("--processes", flags.processes,
                 "Processes among which the ranks are divided")
      ->check(CLI::Range(1, 256));
  app.add_option("--connect", flags.connect, "all, needed or auto")
      ->check(CLI::IsMember({"all", "needed", "auto"}));
  CLI11_PARSE(app, argc, argv);
  flags.processes = std::min(flags.processes, flags.ranks);
  return gradientflow::benchmarks::Run(flags);
}
