// rdma DEVICES [OPTION...]: what the library costs over RDMA beyond the writes
// themselves, with ranks that are threads. DEVICES is what the names of the
// devices begin with, "rxe" for rxe0, rxe1... See tests/rdma/lines.sh.
//
//   stream     1 MiB messages from rank 0 to rank 1, against bare writes, and
//              against those of ib_write_bw where perftest is installed
//   allreduce  1 MiB of float32 among 4 ranks, against the bare writes of its
//              two rounds, in as many segments, and the same additions
//
//   delay      only if asked for, on lines that delay packets: the time of a
//              4 KiB allreduce by gdraa and by a ring
//
// The sides of a comparison run in turn; the medians of the rounds count.
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/lib/median.h"
#include "benchmarks/lib/must.h"
#include "benchmarks/rdma/bare.h"
#include "benchmarks/rdma/perftest.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/communicator/communicator.h"
#include "gradientflow/config/options.h"
#include "gradientflow/config/settings_table.h"

namespace gradientflow::benchmarks {
namespace {

constexpr std::size_t kFloats = std::size_t{1} << 18;
constexpr std::size_t kBytes = kFloats * sizeof(float);  // 1 MiB.
constexpr int kRounds = 7;
constexpr int kWrites = 16;
constexpr int kSums = 8;

// Runs `body` on a thread per rank. Returns the seconds from when all are ready
// to when all are done.
double OnAll(int ranks, const std::function<void(int)>& body) {
  std::barrier<> ready(ranks + 1);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      ready.arrive_and_wait();
      body(r);
    });
  }
  ready.arrive_and_wait();
  const auto begin = std::chrono::steady_clock::now();
  for (std::thread& thread : threads) thread.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

std::string PortOf(const std::string& devices, int rank) {
  return StrCat(devices, rank, ":1");
}

// What the command line says.
struct Wishes {
  std::string devices;
  std::vector<std::string> settings;  // "name=value", of the library.
};

// A job of the library.
struct Job {
  Job(const Wishes& wishes, int ranks, const std::string& algorithm,
      std::size_t bytes)
      : comms(static_cast<std::size_t>(ranks)),
        data(static_cast<std::size_t>(ranks)) {
    std::string folder = "/tmp/gf_rdma_XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr) std::exit(1);
    OnAll(ranks, [&](int rank) {
      Options options;
      options.rank = rank;
      options.size = ranks;
      options.rendezvous = StrCat("file://", folder);
      options.fabric = "rdma";
      options.socket_ifname = "lo";
      options.algorithm = algorithm;
      options.rdma_devices = StrCat("=", PortOf(wishes.devices, rank));
      for (const std::string& setting : wishes.settings) {
        const std::size_t at = setting.find('=');
        Must(SetOption(&options, setting.substr(0, at),
                       at == std::string::npos ? "" : setting.substr(at + 1)));
      }
      auto comm = Must(Communicator::Open(options));
      data[static_cast<std::size_t>(rank)] =
          Must(comm->AllocateShared(bytes)).data;
      comms[static_cast<std::size_t>(rank)] = std::move(comm);
    });
  }

  Communicator& comm(int rank) {
    return *comms[static_cast<std::size_t>(rank)];
  }
  std::byte* of(int rank) { return data[static_cast<std::size_t>(rank)]; }
  void Sum(int rank, std::size_t floats) {
    CollectiveCall call;
    call.output = of(rank);
    call.count = floats;
    Must(comm(rank).Run(call));
  }

  std::vector<std::shared_ptr<Communicator>> comms;
  std::vector<std::byte*> data;
};

struct Bare {
  Bare(const std::string& devices, int count, std::size_t floats) {
    for (int r = 0; r < count; ++r) {
      ranks.push_back(
          std::make_unique<BareRank>(PortOf(devices, r), r, count, floats));
    }
    BareRank::Link(ranks);
  }
  BareRank& operator[](int rank) {
    return *ranks[static_cast<std::size_t>(rank)];
  }
  std::vector<std::unique_ptr<BareRank>> ranks;
};

// The seconds that one thing took in each round.
struct Side {
  const char* name;
  std::vector<double> seconds;
};

// The library's times, and its times divided by those of others.
void Report(const std::string& what, const Side& ours,
            const std::vector<Side>& others) {
  std::printf("%s: %s %.2f ms", what.c_str(), ours.name,
              1e3 * Median(ours.seconds));
  for (const Side& other : others) {
    if (other.seconds.empty()) continue;
    std::vector<double> ratios;
    for (std::size_t i = 0; i < other.seconds.size(); ++i) {
      ratios.push_back(ours.seconds[i] / other.seconds[i]);
    }
    std::printf("; %s %.2f ms, ratio %.2f", other.name,
                1e3 * Median(other.seconds), Median(ratios));
  }
  std::printf("\n");
}

// Returns nothing if there is no such program here.
std::optional<double> PerftestWrite(const std::string& devices) {
  const Result<double> seconds = Run({.from = StrCat(devices, 0),
                                      .to = StrCat(devices, 1),
                                      .bytes = kBytes,
                                      .writes = kWrites,
                                      .most_writes = BareRank::kMostWrites});
  if (seconds.status().code() == StatusCode::kUnimplemented) return {};
  return Must(seconds);
}

void Stream(const Wishes& wishes) {
  Bare bare(wishes.devices, 2, kFloats);
  Job job(wishes, 2, "auto", kBytes);
  const auto writes = [&](int rank) {
    if (rank == 0) bare[0].Write(1, kWrites);
    if (rank == 1) bare[1].AwaitWrites(kWrites);
  };
  // As many at a time as the bare loop has.
  const auto messages = [&](int rank) {
    Communicator& comm = job.comm(rank);
    std::deque<std::uint64_t> under_way;
    for (int i = 0; i < kWrites; ++i) {
      const Communicator::Message message{0, 1 - rank, 1};
      const auto started = rank == 0
                               ? comm.StartSend(message, job.of(0), kBytes)
                               : comm.StartRecv(message, job.of(1), kBytes);
      Must(started.status());
      under_way.push_back(started.value());
      if (under_way.size() < BareRank::kMostWrites) continue;
      Must(comm.Wait(under_way.front()));
      under_way.pop_front();
    }
    for (const std::uint64_t ticket : under_way) Must(comm.Wait(ticket));
  };
  Side of_ours{"library", {}};
  Side of_bare{"bare", {}};
  Side of_perftest{"ib_write_bw", {}};
  for (int round = 0; round <= kRounds; ++round) {
    const double seconds = OnAll(2, writes) / kWrites;
    const double ours = OnAll(2, messages) / kWrites;
    const std::optional<double> theirs = PerftestWrite(wishes.devices);
    if (round == 0) continue;
    of_bare.seconds.push_back(seconds);
    of_ours.seconds.push_back(ours);
    if (theirs) of_perftest.seconds.push_back(*theirs);
  }
  Report("stream of 1 MiB", of_ours, {of_bare, of_perftest});
}

void AllreduceIn(int segments, Wishes wishes) {
  constexpr int kRanks = 4;
  wishes.settings.insert(
      wishes.settings.begin(),
      StrCat("segment_bytes=", kBytes / static_cast<std::size_t>(segments)));
  Bare bare(wishes.devices, kRanks, kFloats);
  Job job(wishes, kRanks, "gdraa", kBytes);
  Side of_ours{"library", {}};
  Side of_bare{"bare", {}};
  for (int round = 0; round <= kRounds; ++round) {
    for (int r = 0; r < kRanks; ++r) {
      for (std::size_t i = 0; i < kFloats; ++i) {
        bare[r].data()[i] = reinterpret_cast<float*>(job.of(r))[i] =
            static_cast<float>(i % 7) + static_cast<float>(r);
      }
    }
    const double seconds = OnAll(kRanks, [&](int rank) {
      for (int i = 0; i < kSums; ++i) bare[rank].Allreduce(segments);
    });
    const double ours = OnAll(kRanks, [&](int rank) {
      for (int i = 0; i < kSums; ++i) job.Sum(rank, kFloats);
    });
    for (std::size_t i = 0; i < kFloats; ++i) {
      const float expected = bare[0].data()[i];
      if (reinterpret_cast<float*>(job.of(1))[i] != expected) {
        Must(Status(StatusCode::kInternal, "the two sums differ"));
      }
    }
    if (round == 0) continue;
    of_bare.seconds.push_back(seconds / kSums);
    of_ours.seconds.push_back(ours / kSums);
  }
  Report(StrCat("allreduce of 1 MiB, 4 ranks, in ", segments, " segment",
                segments > 1 ? "s" : ""),
         of_ours, {of_bare});
}

// In as many segments as the settings make by default, which overlap, and in
// one, which has the fewest writes.
void Allreduce(const Wishes& wishes) {
  for (const int segments : {4, 1}) AllreduceIn(segments, wishes);
}

void Delay(const Wishes& wishes) {
  constexpr std::size_t kSmall = 1024;
  for (const int ranks : {2, 4}) {
    std::vector<double> medians;
    for (const char* algorithm : {"gdraa", "ring"}) {
      Job job(wishes, ranks, algorithm, kSmall * sizeof(float));
      std::vector<double> times;
      for (int round = 0; round <= kRounds; ++round) {
        const double seconds =
            OnAll(ranks, [&](int rank) { job.Sum(rank, kSmall); });
        if (round > 0) times.push_back(seconds);
      }
      medians.push_back(Median(times));
    }
    std::printf(
        "allreduce of 4 KiB, %d ranks: gdraa %.1f ms, ring %.1f ms, ratio "
        "%.2f\n",
        ranks, 1e3 * medians[0], 1e3 * medians[1], medians[1] / medians[0]);
  }
}

int Main(int argc, char** argv) {
  CLI::App app("What the library costs over RDMA beyond the writes themselves");
  Wishes wishes;
  std::string only;
  const std::map<std::string, void (*)(const Wishes&)> parts = {
      {"stream", &Stream}, {"allreduce", &Allreduce}, {"delay", &Delay}};
  app.add_option("devices", wishes.devices, "What their names begin with")
      ->required();
  app.add_option("--only", only, "One part; delay is for lines with delay")
      ->check(CLI::IsMember({"stream", "allreduce", "delay"}));
  app.add_option("--set", wishes.settings,
                 "A setting of the library, as "
                 "segment_bytes=1MB");
  CLI11_PARSE(app, argc, argv);
  if (!only.empty()) {
    parts.at(only)(wishes);
  } else {
    Stream(wishes);
    Allreduce(wishes);
  }
  return 0;
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  return gradientflow::benchmarks::Main(argc, argv);
}
