// rdma DEVICES [--delay]: what the library costs over RDMA beyond the writes
// themselves, with ranks that are threads. DEVICES is what the names of the
// devices begin with, "rxe" for rxe0, rxe1... See tests/rdma/lines.sh.
//
//   stream     1 MiB messages from rank 0 to rank 1, against bare writes
//   allreduce  1 MiB of float32 among 4 ranks, against the bare writes of its
//              two rounds
//
// Both sides of a comparison run in turn; the medians of the rounds count. With
// --delay, on lines that delay packets: the time of a 4 KiB allreduce by gdraa
// and by a ring instead.
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/lib/median.h"
#include "benchmarks/lib/must.h"
#include "benchmarks/rdma/bare.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/communicator/communicator.h"
#include "gradientflow/config/options.h"

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

// A job of the library.
struct Job {
  Job(const std::string& devices, int ranks, const std::string& algorithm,
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
      options.rdma_devices = StrCat("=", PortOf(devices, rank));
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
          Must(BareRank::Open(PortOf(devices, r), r, count, floats)));
    }
    Must(BareRank::Link(ranks));
  }
  BareRank& operator[](int rank) {
    return *ranks[static_cast<std::size_t>(rank)];
  }
  std::vector<std::unique_ptr<BareRank>> ranks;
};

void Report(const char* what, const std::vector<double>& bare,
            const std::vector<double>& ours, double calls) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < bare.size(); ++i) {
    ratios.push_back(ours[i] / bare[i]);
  }
  std::printf("%s: bare %.2f ms, library %.2f ms, ratio %.2f\n", what,
              1e3 * Median(bare) / calls, 1e3 * Median(ours) / calls,
              Median(ratios));
}

void Stream(const std::string& devices) {
  Bare bare(devices, 2, kFloats);
  Job job(devices, 2, "auto", kBytes);
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
  std::vector<double> of_bare;
  std::vector<double> of_ours;
  for (int round = 0; round <= kRounds; ++round) {
    const double seconds = OnAll(2, writes);
    const double ours = OnAll(2, messages);
    if (round == 0) continue;
    of_bare.push_back(seconds);
    of_ours.push_back(ours);
  }
  Report("stream of 1 MiB", of_bare, of_ours, kWrites);
}

void Allreduce(const std::string& devices) {
  constexpr int kRanks = 4;
  Bare bare(devices, kRanks, kFloats);
  Job job(devices, kRanks, "gdraa", kBytes);
  std::vector<double> of_bare;
  std::vector<double> of_ours;
  for (int round = 0; round <= kRounds; ++round) {
    for (int r = 0; r < kRanks; ++r) {
      for (std::size_t i = 0; i < kFloats; ++i) {
        bare[r].data()[i] = reinterpret_cast<float*>(job.of(r))[i] =
            static_cast<float>(i % 7) + static_cast<float>(r);
      }
    }
    const double seconds = OnAll(kRanks, [&](int rank) {
      for (int i = 0; i < kSums; ++i) bare[rank].Allreduce();
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
    of_bare.push_back(seconds);
    of_ours.push_back(ours);
  }
  Report("allreduce of 1 MiB, 4 ranks", of_bare, of_ours, kSums);
}

void Delay(const std::string& devices) {
  constexpr std::size_t kSmall = 1024;
  for (const int ranks : {2, 4}) {
    std::vector<double> medians;
    for (const char* algorithm : {"gdraa", "ring"}) {
      Job job(devices, ranks, algorithm, kSmall * sizeof(float));
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
  std::string devices;
  bool delay = false;
  app.add_option("devices", devices, "What their names begin with")->required();
  app.add_flag("--delay", delay, "Only the latency of a small allreduce");
  CLI11_PARSE(app, argc, argv);
  if (delay) {
    Delay(devices);
  } else {
    Stream(devices);
    Allreduce(devices);
  }
  return 0;
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  return gradientflow::benchmarks::Main(argc, argv);
}
