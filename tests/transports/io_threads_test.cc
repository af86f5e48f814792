#include "transports/tcp/io_threads.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/transports/link_owner.h"
#include "tests/transports/tcp_pair.h"
#include "transports/poller.h"
#include "transports/tcp/socket.h"

// Threads that move bytes for the one that drives.
namespace gradientflow {
namespace {

using testing::Pattern;
using Bytes = std::vector<std::byte>;

TEST(ChooseIoThreads, TakesWhatIsAskedFor) {
  EXPECT_EQ(ChooseIoThreads(0, 100'000, 64), 0);
  EXPECT_EQ(ChooseIoThreads(3, 0, 1), 3);
  EXPECT_EQ(ChooseIoThreads(1000, 0, 1), kMostIoThreads);
}

TEST(ChooseIoThreads, TakesOnePerTenGigabitsAndAQuarterOfTheCores) {
  struct Row {
    int mbps, cores, threads;
  };
  for (const Row& row :
       {Row{0, 64, 0}, Row{1'000, 64, 0}, Row{9'999, 64, 0}, Row{10'000, 64, 1},
        Row{25'000, 64, 2}, Row{100'000, 64, 10}, Row{100'000, 16, 4},
        Row{100'000, 7, 1}, Row{100'000, 3, 0}, Row{100'000, 1, 0},
        Row{400'000, 8, 2}}) {
    EXPECT_EQ(ChooseIoThreads(-1, row.mbps, row.cores), row.threads)
        << row.mbps << " Mb/s, " << row.cores << " cores";
  }
}

// A connection, the io threads of one end, and who lends to them.
class Io : public Loan::Lender {
 public:
  explicit Io(int threads, std::size_t buffer_bytes = 0)
      : poller(Poller::Create().value()),
        io(IoThreads::Start(threads, poller.get()).value()),
        connection(
            tcp_test::MakeConnection("127.0.0.1:0", buffer_bytes).value()) {}

  ~Io() override {
    for (const auto& loan : loans) io->TakeBack(loan.get());
  }

  Loan* Lend(bool reads, std::vector<iovec> pieces, std::size_t least_bytes,
             const Socket* socket = nullptr) {
    loans.push_back(std::make_unique<Loan>());
    Loan* const loan = loans.back().get();
    loan->lender = this;
    loan->fd = (socket == nullptr ? connection.one : *socket).fd();
    loan->reads = reads;
    loan->pieces = std::move(pieces);
    loan->least_bytes = least_bytes;
    io->Lend(loan);
    return loan;
  }
  Loan* Write(Bytes& bytes) {
    return Lend(false, {{bytes.data(), bytes.size()}}, bytes.size());
  }
  Loan* Read(Bytes& bytes) {
    return Lend(true, {{bytes.data(), bytes.size()}}, bytes.size());
  }
  bool Await(const std::function<bool()>& done) {
    while (!done()) {
      if (!poller->Poll(std::chrono::seconds(20))) return false;
    }
    return true;
  }
  bool AwaitAll(std::size_t count) {
    return Await([&] { return returned.size() == count; });
  }
  void OnReturned(Loan* loan) override { returned.push_back(loan); }

  std::unique_ptr<Poller> poller;
  std::shared_ptr<IoThreads> io;
  tcp_test::Connection connection;
  std::vector<std::unique_ptr<Loan>> loans;
  std::vector<Loan*> returned;
};

Bytes Drain(const Socket& socket, std::size_t bytes) {
  Bytes got(bytes);
  std::size_t have = 0;
  while (have < bytes) {
    const std::int64_t more =
        Receive(socket, got.data() + have, got.size() - have);
    if (more > 0) {
      have += static_cast<std::size_t>(more);
    } else if (more == 0 || !tcp_test::WaitFor(socket, POLLIN)) {
      break;
    }
  }
  got.resize(have);
  return got;
}

// Cuts `bytes` into pieces of any size, empty ones included.
std::vector<iovec> Cut(Bytes& bytes, std::mt19937& random) {
  std::vector<iovec> pieces;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t most = std::size_t{1} << (random() % 18);
    const std::size_t size = std::min(random() % most, bytes.size() - at);
    pieces.push_back({bytes.data() + at, size});
    at += size;
  }
  return pieces;
}

TEST(IoThreads, MovePiecesOfAnySizeBothWays) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    Io io(1 + static_cast<int>(seed % 3), seed % 2 == 0 ? 0 : 4096);
    std::mt19937 random(seed);
    const std::size_t bytes = 1 + random() % 1'500'000;
    Bytes sent = Pattern(seed, bytes);
    Bytes back = Pattern(seed + 1, bytes / 2 + 1);
    Bytes got(bytes), got_back(back.size());
    const Socket* const other = &io.connection.other;
    io.Lend(false, Cut(sent, random), bytes);
    io.Lend(true, Cut(got, random), bytes, other);
    io.Lend(false, Cut(back, random), back.size(), other);
    io.Lend(true, Cut(got_back, random), back.size());
    ASSERT_TRUE(io.AwaitAll(4)) << "seed " << seed;
    for (const Loan* loan : io.returned) {
      EXPECT_FALSE(loan->ended || loan->lent);
      EXPECT_EQ(loan->moved_bytes, loan->least_bytes);
    }
    EXPECT_TRUE(got == sent && got_back == back) << "seed " << seed;
  }
}

TEST(IoThreads, ReadWhatIsThereBeyondTheLeast) {
  Io io(1);
  Bytes sent = Pattern(1, 140);
  ASSERT_EQ(Send(io.connection.other, sent.data(), 140), 140);
  ASSERT_TRUE(tcp_test::WaitFor(io.connection.one, POLLIN));
  Bytes payload(100), ahead(60);
  const Loan* const loan =
      io.Lend(true, {{payload.data(), 100}, {ahead.data(), 60}}, 100);
  ASSERT_TRUE(io.AwaitAll(1));
  EXPECT_EQ(loan->moved_bytes, 140U);
  EXPECT_TRUE(
      std::equal(ahead.begin(), ahead.begin() + 40, sent.begin() + 100));
}

TEST(IoThreads, ALoanThatStandsStillHoldsUpNoOther) {
  Io io(1);
  Bytes never(1000);
  const Loan* const stuck = io.Read(never);
  for (std::uint64_t i = 0; i < 50; ++i) {
    Bytes sent = Pattern(i, 70'001);
    io.Write(sent);
    ASSERT_TRUE(io.AwaitAll(i + 1));
    EXPECT_TRUE(Drain(io.connection.other, sent.size()) == sent);
  }
  EXPECT_TRUE(stuck->lent);
  io.io->TakeBack(io.loans[0].get());
  EXPECT_FALSE(stuck->lent);
}

// Whatever moment it is, the buffer belongs to the lender again, and what is
// said to have been moved has been.
TEST(IoThreads, GiveBackAtAnyMoment) {
  std::mt19937 random(3);
  const Bytes copy = Pattern(1, 30'000'000);  // More than the kernel buffers.
  for (int round = 0; round < 60; ++round) {
    Io io(1 + round % 3);
    Bytes out = copy;
    Bytes in(500'000);
    const Bytes incoming = Pattern(2, 200'000);
    const std::int64_t sent =
        Send(io.connection.other, incoming.data(), incoming.size());
    ASSERT_GT(sent, 0);
    Loan* const writing = io.Write(out);
    Loan* const reading = io.Read(in);
    for (unsigned i = random() % 64; i > 0; --i) {
      io.poller->Poll(std::chrono::nanoseconds(0));
    }
    io.io->TakeBack(writing);
    io.io->TakeBack(reading);
    EXPECT_FALSE(writing->lent || reading->lent);
    std::fill(out.begin(), out.end(), std::byte{0xdd});
    EXPECT_FALSE(io.poller->Poll(std::chrono::nanoseconds(0)));
    EXPECT_TRUE(io.returned.empty());
    const Bytes got = Drain(io.connection.other, writing->moved_bytes);
    ASSERT_EQ(got.size(), writing->moved_bytes);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), copy.begin()));
    in.resize(reading->moved_bytes);
    const Bytes rest =
        Drain(io.connection.one, static_cast<std::size_t>(sent) - in.size());
    in.insert(in.end(), rest.begin(), rest.end());
    EXPECT_TRUE(std::equal(in.begin(), in.end(), incoming.begin()));
    // It can be lent again.
    Bytes more = Pattern(3, 100);
    writing->pieces = {{more.data(), more.size()}};
    writing->least_bytes = more.size();
    io.io->Lend(writing);
    ASSERT_TRUE(io.AwaitAll(1));
    EXPECT_TRUE(Drain(io.connection.other, 100) == more);
  }
}

TEST(IoThreads, TellHowAStreamEnds) {
  Io closed(1);
  Bytes out = Pattern(1, 10), in(100);
  ASSERT_EQ(Send(closed.connection.other, out.data(), 10), 10);
  const Loan* loan = closed.Read(in);
  closed.connection.other.Close();
  ASSERT_TRUE(closed.AwaitAll(1));
  EXPECT_TRUE(loan->ended);
  EXPECT_EQ(loan->error, 0);
  EXPECT_EQ(loan->moved_bytes, 10U);

  // What is unread when a connection is closed makes that a reset.
  Io reset(1);
  ASSERT_EQ(Send(reset.connection.one, out.data(), 10), 10);
  ASSERT_TRUE(tcp_test::WaitFor(reset.connection.other, POLLIN));
  loan = reset.Read(in);
  reset.connection.other.Close();
  ASSERT_TRUE(reset.AwaitAll(1));
  EXPECT_TRUE(loan->ended);
  EXPECT_EQ(loan->error, ECONNRESET);
  EXPECT_EQ(loan->moved_bytes, 0U);
  loan = reset.Write(out);
  ASSERT_TRUE(reset.AwaitAll(2));
  EXPECT_TRUE(loan->ended);
  EXPECT_EQ(loan->error, EPIPE);
}

TEST(IoThreads, HaveANameAndTakeNoSignals) {
  const Io io(3);
  int named = 0;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name != "gf-io") continue;
    ++named;
    std::ifstream status(task.path() / "status");
    std::uint64_t blocked = 0;
    for (std::string word; status >> word;) {
      if (word == "SigBlk:") status >> std::hex >> blocked;
    }
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD}) {
      EXPECT_NE(blocked >> (signal - 1) & 1, 0U) << signal;
    }
  }
  EXPECT_EQ(named, 3);
}

TEST(IoThreads, StartWhenTheLineHasBeenMeasured) {
  const auto poller = Poller::Create().value();
  EXPECT_EQ(IoThreads::StartWhenMeasured(3, poller.get()).value(), nullptr);
  for (const int mbps : {0, 9'999, 10'000, 400'000}) {
    const auto io = IoThreads::StartWhenMeasured(4, poller.get()).value();
    ASSERT_NE(io, nullptr);
    EXPECT_FALSE(io->any());
    EXPECT_EQ(io->Measured(mbps), mbps >= 10'000);
    // The first measurement counts.
    EXPECT_EQ(io->Measured(400'000), mbps >= 10'000);
    EXPECT_EQ(io->any(), mbps >= 10'000);
  }
}

TEST(IoThreads, AreNoneIfNoneAreWanted) {
  const auto poller = Poller::Create().value();
  EXPECT_EQ(IoThreads::Start(0, poller.get()).value(), nullptr);
}

}  // namespace
}  // namespace gradientflow
