// rdma DEVICES: what the library costs over RDMA beyond the writes themselves:
// 1 MiB messages from rank 0 to rank 1, which are threads, against bare writes,
// and against those of ib_write_bw where perftest is installed. DEVICES is what
// the names of the devices begin with, "rxe" for rxe0 and rxe1. See
// tests/rdma/lines.sh.
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/lib/must.h"
#include "benchmarks/lib/turns.h"
#include "benchmarks/rdma/bare.h"
#include "gradientflow/base/clock.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/communicator/communicator.h"
#include "gradientflow/config/options.h"

namespace gradientflow::benchmarks {
namespace {

constexpr std::size_t kBytes = std::size_t{1} << 20;
constexpr int kRounds = 7;
constexpr int kWrites = 16;

// Runs both sides on threads. Returns the seconds from when they are ready to
// when they are done, per write.
double TimeBoth(const std::function<void()>& one,
                const std::function<void()>& other) {
  std::barrier<> ready(3);
  const auto when_ready = [&](const std::function<void()>& side) {
    ready.arrive_and_wait();
    side();
  };
  std::thread first(when_ready, one);
  std::thread second(when_ready, other);
  ready.arrive_and_wait();
  const Clock::Time begin = SteadyClock().Now();
  first.join();
  second.join();
  return Seconds(SteadyClock().Now() - begin) / kWrites;
}

// A rank of the library, with memory that the cards reach.
struct Rank {
  Rank(Options options, const std::string& devices, int rank) {
    options.rank = rank;
    options.size = 2;
    options.fabric = "rdma";
    options.socket_ifname = "lo";
    options.rdma_devices = StrCat("=", devices, rank, ":1");
    comm = Must(Communicator::Open(options));
    data = Must(comm->AllocateShared(kBytes)).data;
  }

  // Rank 0 sends to rank 1, with as many messages at a time as the bare loop
  // has.
  void Exchange() const {
    const Communicator::Message message{0, 1 - comm->rank(), 1};
    std::deque<std::uint64_t> under_way;
    for (int i = 0; i < kWrites; ++i) {
      under_way.push_back(Must(comm->rank() == 0
                                   ? comm->StartSend(message, data, kBytes)
                                   : comm->StartRecv(message, data, kBytes)));
      if (under_way.size() < BareStream::kMostWrites) continue;
      Must(comm->Wait(under_way.front()));
      under_way.pop_front();
    }
    for (const std::uint64_t ticket : under_way) Must(comm->Wait(ticket));
  }

  std::shared_ptr<Communicator> comm;
  std::byte* data = nullptr;
};

// Returns the seconds that such a write takes on average, as perftest's program
// says. Its client looks for the server until that has started, and whichever
// of the two is left alone gives up.
double TimeIbWriteBw(const std::string& devices) {
  constexpr double kMib = 1048576;  // The program's "MB".
  const std::string program =
      StrCat("timeout 60 ib_write_bw -F -s ", kBytes, " -n ", kWrites, " -t ",
             BareStream::kMostWrites, " -d ", devices);
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

void Run(const std::string& devices) {
  std::string folder = "/tmp/gf_rdma_XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) {
    throw std::runtime_error("cannot make " + folder);
  }
  Options options;
  options.rendezvous = StrCat("file://", folder);
  auto opening =
      std::async(std::launch::async, [&] { return Rank(options, devices, 1); });
  const Rank sender(options, devices, 0);
  const Rank receiver = opening.get();
  BareStream bare(devices, kBytes);
  std::vector<const char*> names = {"library", "bare"};
  std::vector<std::function<double()>> sides = {
      [&] {
        return TimeBoth([&] { sender.Exchange(); },
                        [&] { receiver.Exchange(); });
      },
      [&] {
        return TimeBoth([&] { bare.Write(kWrites); },
                        [&] { bare.Await(kWrites); });
      }};
  if (std::system("command -v ib_write_bw >/dev/null") == 0) {
    names.push_back("ib_write_bw");
    sides.emplace_back([&] { return TimeIbWriteBw(devices); });
  }
  const auto seconds = TakeTurns(kRounds, sides);
  std::printf("stream of 1 MiB: ");
  for (std::size_t i = 0; i < sides.size(); ++i) {
    std::printf("%s%s %.2f ms", i > 0 ? "; " : "", names[i],
                1e3 * Median(seconds[i]));
    if (i > 0) std::printf(", ratio %.2f", MedianRatio(seconds[0], seconds[i]));
  }
  std::printf("\n");
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  gradientflow::benchmarks::Run(argv[1]);
  return 0;
}
