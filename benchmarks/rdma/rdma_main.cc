// rdma DEVICES [delayed]: what the library costs over RDMA beyond the writes
// themselves, with ranks that are threads. DEVICES is what the names of the
// devices begin with, "rxe" for rxe0, rxe1... See tests/rdma/lines.sh.
//
//   stream     1 MiB messages from rank 0 to rank 1, against bare writes, and
//              against those of ib_write_bw where perftest is installed
//   allreduce  1 MiB of float32 among 4 ranks, against the bare writes of its
//              two rounds, in as many segments, and the same additions
//
// On lines that delay packets, with `delayed`, instead:
//
//   allreduce  4 KiB of float32 among 2 and 4 ranks, by gdraa, by a ring, and
//              as the paper has it, which reads between the barriers of a
//              server
#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "benchmarks/lib/must.h"
#include "benchmarks/lib/turns.h"
#include "benchmarks/rdma/bare.h"
#include "benchmarks/rdma/parts.h"
#include "benchmarks/rdma/pull.h"
#include "gradientflow/base/clock.h"
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
constexpr std::size_t kFewFloats = 1024;  // 4 KiB.

// Runs `body` on a thread per rank. Returns the seconds from when all are ready
// to when all are done.
template <typename Rank, typename Body>
double OnAll(std::vector<Rank>& ranks, const Body& body) {
  std::barrier<> ready(static_cast<std::ptrdiff_t>(ranks.size()) + 1);
  std::vector<std::thread> threads;
  for (Rank& rank : ranks) {
    threads.emplace_back([&] {
      ready.arrive_and_wait();
      body(rank);
    });
  }
  ready.arrive_and_wait();
  const Clock::Time begin = SteadyClock().Now();
  for (std::thread& thread : threads) thread.join();
  return Seconds(SteadyClock().Now() - begin);
}

// A rank of the library, with memory that the cards reach.
struct Ours {
  Options options;
  std::size_t count = 0;  // Of the floats that it sums.
  std::shared_ptr<Communicator> comm = nullptr;
  std::byte* data = nullptr;

  float* floats() { return reinterpret_cast<float*>(data); }
  void Sum() {
    CollectiveCall call;
    call.output = data;
    call.count = count;
    Must(comm->Run(call));
  }
};

// Opens a job with `options`, in which rank r has the device `devices` and r,
// and `floats` floats.
std::vector<Ours> OpenOurs(const std::string& devices, int ranks,
                           std::size_t floats, Options options) {
  std::string folder = "/tmp/gf_rdma_XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) {
    throw std::runtime_error("cannot make " + folder);
  }
  options.size = ranks;
  options.rendezvous = StrCat("file://", folder);
  options.fabric = "rdma";
  options.socket_ifname = "lo";
  std::vector<Ours> job;
  for (options.rank = 0; options.rank < ranks; ++options.rank) {
    options.transport_settings["rdma_devices"] =
        StrCat("=", devices, options.rank, ":1");
    job.push_back({options, floats});
  }
  OnAll(job, [](Ours& rank) {
    rank.comm = Must(Communicator::Open(rank.options));
    rank.data =
        Must(rank.comm->AllocateShared(rank.count * sizeof(float))).data;
  });
  return job;
}

// A name, and what returns seconds.
using Side = std::pair<std::string, std::function<double()>>;

// Runs the sides in turn. Prints the median time of each, and that of the first
// in relation to it.
void Compare(const std::string& what, const std::vector<Side>& sides) {
  std::vector<std::function<double()>> runs;
  for (const Side& side : sides) runs.push_back(side.second);
  const auto seconds = TakeTurns(kRounds, runs);
  std::printf("%s: ", what.c_str());
  for (std::size_t i = 0; i < sides.size(); ++i) {
    std::printf("%s%s %.2f ms", i > 0 ? "; " : "", sides[i].first.c_str(),
                1e3 * Median(seconds[i]));
    if (i > 0) std::printf(", ratio %.2f", MedianRatio(seconds[0], seconds[i]));
  }
  std::printf("\n");
}

// Rank 0 sends to rank 1, with as many messages at a time as the bare loop has.
void SendMessages(const Ours& rank) {
  const Communicator::Message message{0, 1 - rank.comm->rank(), 1};
  std::deque<std::uint64_t> under_way;
  for (int i = 0; i < kWrites; ++i) {
    under_way.push_back(
        Must(rank.comm->rank() == 0
                 ? rank.comm->StartSend(message, rank.data, kBytes)
                 : rank.comm->StartRecv(message, rank.data, kBytes)));
    if (under_way.size() < BareRank::kMostWrites) continue;
    Must(rank.comm->Wait(under_way.front()));
    under_way.pop_front();
  }
  for (const std::uint64_t ticket : under_way) Must(rank.comm->Wait(ticket));
}

// Returns the seconds that such a write takes on average, as perftest's program
// says. Its client looks for the server until that has started, and whichever
// of the two is left alone gives up.
double TimeIbWriteBw(const std::string& devices) {
  constexpr double kMib = 1048576;  // The program's "MB".
  const std::string program =
      StrCat("timeout 60 ib_write_bw -F -s ", kBytes, " -n ", kWrites, " -t ",
             BareRank::kMostWrites, " -d ", devices);
  // The client's last line has bytes, writes, the highest and the average rate.
  const std::string command = StrCat(
      "exec 2>&1; ", program, "1 >/dev/null & for i in $(seq 50); do ", program,
      "0 127.0.0.1 && break; sleep 0.1; done | awk '$1 == ", kBytes,
      " { print $4 }'; wait");
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  double rate = 0;
  if (pipe == nullptr || std::fscanf(pipe, "%lf", &rate) != 1 || rate <= 0) {
    throw std::runtime_error("no rate comes from: " + command);
  }
  ::pclose(pipe);
  return static_cast<double>(kBytes) / (rate * kMib);
}

void Stream(const std::string& devices) {
  auto bare = OpenRanks<BareRank>(devices, 2, kFloats);
  auto job = OpenOurs(devices, 2, kFloats, {});
  std::vector<Side> sides = {
      {"library", [&] { return OnAll(job, SendMessages) / kWrites; }},
      {"bare", [&] {
         return OnAll(bare,
                      [](auto& rank) {
                        if (rank->rank() == 0) rank->Write(1, kWrites);
                        if (rank->rank() == 1) rank->AwaitWrites(kWrites);
                      }) /
                kWrites;
       }}};
  if (std::system("command -v ib_write_bw >/dev/null") == 0) {
    // What comes right after other programs finds caches cold and is some 3 %
    // slower, so messages that are not timed come between.
    sides.push_back({"ib_write_bw", [&] {
                       const double took = TimeIbWriteBw(devices);
                       OnAll(job, SendMessages);
                       return took;
                     }});
  }
  Compare("stream of 1 MiB", sides);
}

// Returns the seconds of one of the sums that `sum` makes on each rank, of
// known numbers in `data`, which has `count` floats.
template <typename Rank, typename Data, typename Sum>
double TimeSums(std::vector<Rank>& ranks, std::size_t count, const Data& data,
                const Sum& sum) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    float* const floats = data(ranks[r]);
    for (std::size_t i = 0; i < count; ++i) {
      floats[i] = static_cast<float>(i % 7 + r);
    }
  }
  const auto sum_all = [&](Rank& rank) {
    for (int i = 0; i < kSums; ++i) sum(rank);
  };
  return OnAll(ranks, sum_all) / kSums;
}

double TimeOurs(std::vector<Ours>& job) {
  return TimeSums(
      job, job[0].count, [](Ours& rank) { return rank.floats(); },
      [](Ours& rank) { rank.Sum(); });
}

void CheckSame(const float* one, const float* other, std::size_t count) {
  if (!std::equal(one, one + count, other)) {
    throw std::runtime_error("the two sums differ");
  }
}

// In as many segments as the settings make by default, which overlap, and in
// one, which has the fewest writes.
void Allreduce(const std::string& devices) {
  for (const std::size_t segments : {4, 1}) {
    Options options;
    options.algorithm = "gdraa";
    options.segment_bytes = kBytes / segments;
    auto bare = OpenRanks<BareRank>(devices, 4, kFloats);
    auto job = OpenOurs(devices, 4, kFloats, options);
    const auto sum_bare = [&] {
      return TimeSums(
          bare, kFloats, [](auto& rank) { return rank->data(); },
          [&](auto& rank) { rank->Allreduce(segments); });
    };
    const auto sum_ours = [&] { return TimeOurs(job); };
    sum_bare();
    sum_ours();
    CheckSame(bare[0]->data(), job[1].floats(), kFloats);
    Compare(StrCat("allreduce of 1 MiB, 4 ranks, in ", segments, " segment",
                   segments > 1 ? "s" : ""),
            {{"library", sum_ours}, {"bare", sum_bare}});
  }
}

// Where messages take long, and their bytes no time.
void DelayedAllreduce(const std::string& devices) {
  for (const int ranks : {2, 4}) {
    Options options;
    options.algorithm = "gdraa";
    auto job = OpenOurs(devices, ranks, kFewFloats, options);
    options.algorithm = "ring";
    auto ring = OpenOurs(devices, ranks, kFewFloats, options);
    auto pull = OpenRanks<PullRank>(devices, static_cast<std::size_t>(ranks),
                                    kFewFloats);
    const auto sum_ours = [&] { return TimeOurs(job); };
    const auto sum_pulled = [&] {
      return TimeSums(
          pull, kFewFloats, [](auto& rank) { return rank->data(); },
          [](auto& rank) { rank->Allreduce(); });
    };
    sum_ours();
    sum_pulled();
    for (const auto& rank : pull) {
      CheckSame(rank->data(), job[1].floats(), kFewFloats);
    }
    Compare(StrCat("allreduce of 4 KiB, ", ranks, " ranks"),
            {{"gdraa", sum_ours},
             {"ring", [&] { return TimeOurs(ring); }},
             {"reads between barriers", sum_pulled}});
  }
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  const bool delayed = argc == 3 && std::string_view(argv[2]) == "delayed";
  if (argc != 2 && !delayed) {
    std::fprintf(stderr,
                 "usage: rdma DEVICES, whose names begin so [delayed]\n");
    return 2;
  }
  if (delayed) {
    gradientflow::benchmarks::DelayedAllreduce(argv[1]);
    return 0;
  }
  gradientflow::benchmarks::Stream(argv[1]);
  gradientflow::benchmarks::Allreduce(argv[1]);
  return 0;
}
