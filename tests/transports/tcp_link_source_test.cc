#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/manual_clock.h"
#include "gradientflow/base/secret.h"
#include "tests/transports/fabric_ranks.h"
#include "tests/transports/link_owner.h"
#include "transports/endpoint.h"
#include "transports/fabric.h"
#include "transports/poller.h"
#include "transports/tcp/addresses.h"
#include "transports/tcp/create.h"
#include "transports/tcp/hello.h"
#include "transports/tcp/socket.h"

// Ranks that are not linked at all at the beginning, and connect by TCP when
// they need each other.
namespace gradientflow {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Room;
using testing::TransferEnding;
using testing::View;

const Bits256 kSecret = HmacSha256("a key", "");

struct Job {
  explicit Job(int size, const Clock& time, Bits256 odd_secret = kSecret) {
    TransportOptions options;
    options.socket_ifname = "lo";
    options.ip_version = 4;
    std::vector<std::unique_ptr<Endpoint>> endpoints;
    for (int r = 0; r < size; ++r) {
      endpoints.push_back(std::move(kTcpTransport.open(options)).value());
      addresses.push_back(endpoints.back()->address());
    }
    FabricOptions fabric_options;
    fabric_options.heartbeat_timeout = seconds(20);
    for (int r = 0; r < size; ++r) {
      fabrics.push_back(std::make_unique<Fabric>(
          r, size, time, Poller::Create().value(), fabric_options));
      Fabric& fabric = *fabrics.back();
      ConnectArgs args;
      args.rank = r;
      args.size = size;
      args.addresses.resize(static_cast<std::size_t>(size));
      args.secret = r % 2 == 1 ? odd_secret : kSecret;
      args.deadline = time.Now() + seconds(10);
      args.clock = &time;
      args.poller = &fabric.poller();
      args.events = &fabric;
      args.more_later = true;
      Endpoint& endpoint = *endpoints[static_cast<std::size_t>(r)];
      auto links = endpoint.Connect(args);
      EXPECT_TRUE(links.ok()) << links.status().ToString();
      auto source = endpoint.TakeLinkSource(args, &fabric);
      EXPECT_TRUE(source.ok()) << source.status().ToString();
      fabric.Connect(std::move(links).value(), std::move(source).value());
    }
  }
  void LearnAll() {
    for (auto& fabric : fabrics) {
      EXPECT_TRUE(fabric->source()->Learn(addresses).ok());
    }
  }
  Fabric& at(int rank) { return *fabrics[static_cast<std::size_t>(rank)]; }
  bool Drive(const std::function<bool()>& until, int rounds = 20000) {
    for (int i = 0; i < rounds && !until(); ++i) {
      for (auto& fabric : fabrics) {
        if (fabric != nullptr) fabric->Poll();
      }
      if (clock != nullptr) clock->Advance(milliseconds(1));
    }
    return until();
  }

  ManualClock* clock = nullptr;  // Runs while Drive() does, unless null.
  std::vector<std::string> addresses;
  std::vector<std::unique_ptr<Fabric>> fabrics;
};

class TcpLinkSources : public ::testing::Test {
 protected:
  ManualClock clock_;
};

TEST_F(TcpLinkSources, EitherRankMayBeFirst) {
  for (const int from : {0, 2}) {
    const int to = 2 - from;
    Job job(3, clock_);
    job.clock = &clock_;
    job.LearnAll();
    std::string in(5, '?');
    const std::string out = "hello";
    TransferEnding sent, received;
    job.at(from).Send(to, CallTag(0, 1), View(out), {}, sent.done());
    EXPECT_TRUE(job.Drive([&] { return job.at(to).link(from) != nullptr; }));
    job.at(to).Recv(from, CallTag(0, 1), Room(&in), 0, received.done());
    EXPECT_TRUE(job.Drive([&] { return received.times == 1; }));
    EXPECT_EQ(in, out);
    EXPECT_EQ(job.at(0).link(1), nullptr) << "nobody needs it";
    EXPECT_FALSE(job.at(0).IsLinking());
    EXPECT_FALSE(job.at(2).IsLinking());
  }
}

TEST_F(TcpLinkSources, AReceiveIsEnough) {
  Job job(2, clock_);
  job.clock = &clock_;
  job.LearnAll();
  std::string in(5, '?');
  TransferEnding received;
  job.at(0).Recv(1, CallTag(0, 1), Room(&in), 0, received.done());
  job.at(0).Tick(true);
  EXPECT_TRUE(job.Drive([&] { return job.at(1).link(0) != nullptr; }));
  job.fabrics.clear();
  EXPECT_EQ(received.times, 1);
}

TEST_F(TcpLinkSources, ARankWhoseAddressComesLateIsDialledThen) {
  Job job(2, clock_);
  job.clock = &clock_;
  const std::string out = "hello";
  TransferEnding sent;
  job.at(0).Send(1, CallTag(0, 1), View(out), {}, sent.done());
  EXPECT_FALSE(job.Drive([&] { return sent.times == 1; }, 300));
  ASSERT_TRUE(job.at(0).source()->Learn(job.addresses).ok());
  EXPECT_FALSE(job.Drive([&] { return sent.times == 1; }, 300))
      << "rank 1 does not know whom to expect";
  ASSERT_TRUE(job.at(1).source()->Learn(job.addresses).ok());
  EXPECT_TRUE(job.Drive([&] { return sent.times == 1; }));
}

// Rank 0 knows an address of rank 1 where nobody answers, as behind a firewall.
TEST_F(TcpLinkSources, OneDirectionIsEnough) {
  Job job(2, clock_);
  job.clock = &clock_;
  const Socket silent =
      std::move(ListenOn(*SocketAddress::Parse("127.0.0.1:0"), 0)).value();
  std::vector<std::string> wrong = job.addresses;
  wrong[1] = LocalAddress(silent).ToString();
  ASSERT_TRUE(job.at(0).source()->Learn(wrong).ok());
  ASSERT_TRUE(job.at(1).source()->Learn(job.addresses).ok());
  std::string in(5, '?');
  const std::string out = "hello";
  TransferEnding sent, received;
  job.at(0).Send(1, CallTag(0, 1), View(out), {}, sent.done());
  EXPECT_FALSE(job.Drive([&] { return sent.times == 1; }, 3000));
  job.at(1).Recv(0, CallTag(0, 1), Room(&in), 0, received.done());
  job.at(1).Tick(true);
  EXPECT_TRUE(job.Drive([&] { return received.times == 1; }));
  EXPECT_EQ(in, out);
}

// Something refuses in the place of rank 1, which computes for half a minute
// before it asks for the link itself.
TEST_F(TcpLinkSources, RefusalsOfAnybodyAreNoProofThatARankHasLeft) {
  Job job(2, clock_);
  job.clock = &clock_;
  std::vector<std::string> wrong = job.addresses;
  wrong[1] = "127.0.0.2:1";
  ASSERT_TRUE(job.at(0).source()->Learn(wrong).ok());
  ASSERT_TRUE(job.at(1).source()->Learn(job.addresses).ok());
  std::string in(5, '?');
  const std::string out = "hello";
  TransferEnding sent, received;
  job.at(0).Send(1, CallTag(0, 1), View(out), {}, sent.done());
  for (int i = 0; i < 3000; ++i) {
    job.at(0).Poll();
    clock_.Advance(milliseconds(10));
  }
  EXPECT_EQ(sent.times, 0) << sent.status.ToString();
  EXPECT_NE(job.at(0).source()->TroubleWith(1).find("refused"),
            std::string::npos);
  job.at(1).Recv(0, CallTag(0, 1), Room(&in), 0, received.done());
  job.at(1).Tick(true);
  EXPECT_TRUE(job.Drive([&] { return received.times == 1; }));
  EXPECT_EQ(in, out);
}

// Both sides' sockets are looked at in random order, and time passes at random,
// so that decisions are taken at every stage of the other side's lanes.
TEST_F(TcpLinkSources, BothMayDialAtTheSameTime) {
  const std::size_t before = testing::CountEntries("/proc/self/fd");
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    Job job(2, clock_);
    job.LearnAll();
    const std::string out[2] = {"from 0", "from 1"};
    std::string in[2] = {std::string(6, '?'), std::string(6, '?')};
    TransferEnding ended[4];
    const std::uint32_t skew = random() % 20;
    int started[2] = {0, 0};
    const auto start = [&](int rank) {
      if (started[rank]++ != static_cast<int>(rank == 0 ? skew : 10)) return;
      const int peer = 1 - rank;
      job.at(rank).Send(peer, CallTag(0, 1), View(out[rank]), {},
                        ended[rank].done());
      job.at(rank).Recv(peer, CallTag(0, 1), Room(&in[rank]), 0,
                        ended[2 + rank].done());
    };
    const auto all_over = [&] {
      return ended[0].times + ended[1].times + ended[2].times +
                 ended[3].times ==
             4;
    };
    for (int i = 0; i < 100000 && !all_over(); ++i) {
      const int rank = static_cast<int>(random() % 2);
      start(rank);
      job.at(rank).Poll();
      if (random() % 8 == 0) clock_.Advance(milliseconds(random() % 10));
    }
    ASSERT_TRUE(all_over())
        << "seed " << seed << ": " << job.at(0).source()->TroubleWith(1) << "; "
        << job.at(1).source()->TroubleWith(0);
    EXPECT_EQ(in[0], out[1]);
    EXPECT_EQ(in[1], out[0]);
    for (const TransferEnding& how : ended) EXPECT_TRUE(how.status.ok());
    // Neither side keeps lanes that the other has dropped.
    EXPECT_TRUE(job.Drive([&] { return !job.at(0).IsLinking(); }));
    for (int i = 0; i < 50; ++i) {
      job.at(0).Poll();
      job.at(1).Poll();
    }
    EXPECT_TRUE(job.at(0).status().ok()) << job.at(0).status().ToString();
    EXPECT_TRUE(job.at(1).status().ok()) << job.at(1).status().ToString();
  }
  EXPECT_EQ(testing::CountEntries("/proc/self/fd"), before);
}

// The same on threads, which sleep and wake each other.
TEST(TcpLinkSourcesOnThreads, BothMayDialAtTheSameTime) {
  const SteadyClock clock;
  const std::size_t before = testing::CountEntries("/proc/self/fd");
  for (int round = 0; round < 1000; ++round) {
    Job job(2, clock);
    job.LearnAll();
    const std::string out[2] = {"from 0", "from 1"};
    std::string in[2] = {std::string(6, '?'), std::string(6, '?')};
    std::barrier<> both(2);
    const auto run = [&](int rank) {
      Fabric& fabric = job.at(rank);
      TransferEnding sent, received;
      both.arrive_and_wait();
      for (volatile int spin = 0; spin < (rank == 0 ? round * 20 : 10000);) {
        spin = spin + 1;
      }
      fabric.Send(1 - rank, CallTag(0, 1), View(out[rank]), {}, sent.done());
      fabric.Recv(1 - rank, CallTag(0, 1), Room(&in[rank]), 0, received.done());
      while (sent.times + received.times < 2 && fabric.status().ok()) {
        if (!fabric.Poll()) fabric.Wait(milliseconds(100));
      }
      EXPECT_TRUE(fabric.status().ok()) << fabric.status().ToString();
      both.arrive_and_wait();
      fabric.Leave(seconds(10));
      EXPECT_TRUE(fabric.status().ok()) << fabric.status().ToString();
    };
    std::thread other([&] { run(1); });
    run(0);
    other.join();
    ASSERT_EQ(in[0], out[1]);
    ASSERT_EQ(in[1], out[0]);
  }
  EXPECT_EQ(testing::CountEntries("/proc/self/fd"), before);
}

TEST_F(TcpLinkSources, StrangersCostNothing) {
  Job job(2, clock_);
  job.LearnAll();
  const SocketAddress door = *SocketAddress::Parse(
      job.addresses[1].substr(0, job.addresses[1].find('@')));
  const std::size_t before = testing::CountEntries("/proc/self/fd");
  std::vector<Socket> strangers;
  for (int i = 0; i < 600; ++i) {
    strangers.push_back(std::move(StartConnect(door, 0)).value());
    if (i % 2 == 0) {
      const std::string garbage(200, 'x');
      static_cast<void>(Send(strangers.back(), garbage.data(), garbage.size()));
    }
    job.at(1).Poll();
  }
  const std::string out = "hello";
  TransferEnding sent;
  job.at(0).Send(1, CallTag(0, 1), View(out), {}, sent.done());
  job.clock = &clock_;
  EXPECT_TRUE(job.Drive([&] { return sent.times == 1; }, 5000));
  EXPECT_TRUE(job.at(1).IsLinking()) << "some are still there";
  EXPECT_LE(testing::CountEntries("/proc/self/fd"),
            before + strangers.size() + 140);
  clock_.Advance(seconds(11));
  EXPECT_TRUE(job.Drive([&] { return !job.at(1).IsLinking(); }, 5000));
}

TEST_F(TcpLinkSources, ARankOfAnotherJobIsAStranger) {
  Job job(2, clock_, HmacSha256("another key", ""));
  job.clock = &clock_;
  job.LearnAll();
  const std::string out = "hello";
  TransferEnding sent[2];
  for (const int rank : {0, 1}) {
    job.at(rank).Send(1 - rank, CallTag(0, 1), View(out), {},
                      sent[rank].done());
  }
  EXPECT_FALSE(job.Drive([&] { return job.at(0).link(1) != nullptr; }, 3000));
  EXPECT_EQ(job.at(1).link(0), nullptr);
  EXPECT_NE(job.at(1).source()->TroubleWith(0).find("of this job"),
            std::string::npos)
      << job.at(1).source()->TroubleWith(0);
  job.fabrics.clear();
}

TEST_F(TcpLinkSources, WhoNeedsARankThatHasLeftHearsSo) {
  Job job(3, clock_);
  job.clock = &clock_;
  job.LearnAll();
  job.at(2).Leave(milliseconds(0));
  job.fabrics[2].reset();
  const std::string out = "hello";
  TransferEnding sent;
  job.at(0).Send(2, CallTag(0, 1), View(out), {}, sent.done());
  EXPECT_TRUE(job.Drive([&] { return sent.times == 1; }, 3000));
  EXPECT_EQ(sent.status.code(), StatusCode::kUnavailable);
  EXPECT_NE(sent.status.message().find("rank 2 (" + job.addresses[2] +
                                       ") has left the job"),
            std::string::npos)
      << sent.status.message();
}

TEST_F(TcpLinkSources, ARankThatDoesNotAnswerIsNamed) {
  Job job(2, clock_);
  job.LearnAll();
  std::unique_ptr<Fabric> stopped = std::move(job.fabrics[1]);
  const std::string out = "hello";
  TransferEnding sent;
  job.at(0).Send(1, CallTag(0, 1), View(out), {}, sent.done());
  for (int i = 0; i < 300 && sent.times == 0; ++i) {
    clock_.Advance(milliseconds(100));
    job.at(0).Tick(true);
    job.at(0).Poll();
  }
  EXPECT_EQ(sent.status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(sent.status.message().find("rank 1 (" + job.addresses[1] + ")"),
            std::string::npos)
      << sent.status.message();
}

TEST_F(TcpLinkSources, WithoutDescriptorsTheErrorHasBothNumbers) {
  Job job(2, clock_);
  job.LearnAll();
  const std::string out = "hello";
  TransferEnding sent;
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest = ::dup(0);
  ::close(lowest);
  rlimit low = before;
  low.rlim_cur = static_cast<rlim_t>(lowest);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  job.at(0).Send(1, CallTag(0, 1), View(out), {}, sent.done());
  job.Drive([&] { return sent.times == 1; }, 100);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(sent.status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(sent.status.message(),
            "rank 0 needs 2 file descriptors for its link to rank 1 (" +
                job.addresses[1] + "), and the " + std::to_string(lowest) +
                " that it may open are in use: raise ulimit -n");
}

}  // namespace
}  // namespace gradientflow
