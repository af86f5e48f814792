#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/fd.h"
#include "gradientflow/base/secret.h"
#include "tests/transports/link_owner.h"
#include "transports/arena.h"
#include "transports/endpoint.h"
#include "transports/shm/create.h"

namespace gradientflow {
namespace {

using testing::CountEntries;
using testing::Intact;
using testing::LinkOwner;

constexpr std::size_t kArena = std::size_t{16} << 20;
constexpr std::size_t kFifo = 8192;
const std::string kSession = "4711";

// For a child: ends it with a message.
#define REQUIRE(condition)                                            \
  do {                                                                \
    if (!(condition)) {                                               \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, \
                   #condition);                                       \
      ::_exit(1);                                                     \
    }                                                                 \
  } while (false)

bool Says(const Status& seen, const std::string& text) {
  return seen.message().find(text) != std::string::npos;
}

// One process of a job of forked ranks.
struct Process {
  int rank = 0;
  int size = 0;
  std::vector<std::string> addresses;
  std::unique_ptr<Endpoint> host;
  LinkOwner end;
  SteadyClock clock;

  Status Connect(const std::string& session = kSession, int size_to_claim = 0,
                 int milliseconds = 10000) {
    ConnectArgs args;
    args.rank = rank;
    args.size = size_to_claim > 0 ? size_to_claim : size;
    args.addresses = addresses;
    args.addresses.resize(args.size);
    args.secret = HmacSha256(session, "");
    args.clock = &clock;
    args.deadline = clock.Now() + std::chrono::milliseconds(milliseconds);
    args.poller = end.poller();
    args.events = &end;
    auto links = host->Connect(args);
    if (!links.ok()) return links.status();
    end.Take(std::move(links).value());
    return Status();
  }
};

// Forks `size` ranks, tells each all addresses, and runs `body` in each. The
// parent is not a rank: it hands out addresses and collects results.
class Job {
 public:
  Job(int size, const std::function<void(Process&)>& body) {
    for (int rank = 0; rank < size; ++rank) {
      int sockets[2];
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets),
                0);
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::alarm(30);  // A hang is a failure.
        control_.clear();
        Child(rank, size, Fd(sockets[1]), Fd(sockets[0]), body);
      }
      ::close(sockets[1]);
      control_.emplace_back(sockets[0]);
      pids_.push_back(pid);
    }
    std::string all;
    for (Fd& fd : control_) all += ReadName(fd);
    for (Fd& fd : control_) {
      EXPECT_EQ(::write(fd.get(), all.data(), all.size()),
                static_cast<ssize_t>(all.size()));
    }
  }
  ~Job() {
    for (const pid_t pid : pids_) {
      if (pid > 0) {
        ::kill(pid, SIGKILL);
        ::waitpid(pid, nullptr, 0);
      }
    }
  }

  // Blocks until `rank` has called Say().
  void AwaitWord(int rank) {
    char word = 0;
    EXPECT_EQ(::read(control_[rank].get(), &word, 1), 1);
  }
  // Ends the rank's AwaitParent().
  void Release(int rank) { control_[rank].Reset(); }
  void Kill(int rank) { ::kill(pids_[rank], SIGKILL); }
  // Returns whether the rank ended well.
  bool Join(int rank) {
    int status = 0;
    ::waitpid(std::exchange(pids_[rank], -1), &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  // For a child: signals the parent.
  static void Say() {
    const char word = 1;
    REQUIRE(::write(parent, &word, 1) == 1);
  }
  // For a child: blocks until the parent calls Release().
  static void AwaitParent() {
    char word = 0;
    REQUIRE(::read(parent, &word, 1) == 0);
  }

 private:
  static constexpr std::size_t kName = 100;

  static std::string ReadName(const Fd& fd) {
    std::string name(kName, ' ');
    EXPECT_EQ(::recv(fd.get(), name.data(), kName, MSG_WAITALL),
              static_cast<ssize_t>(kName));
    return name;
  }

  [[noreturn]] static void Child(int rank, int size, Fd mine, Fd parents,
                                 const std::function<void(Process&)>& body) {
    parents.Reset();
    parent = mine.get();
    {
      Process process;
      process.rank = rank;
      process.size = size;
      auto host = kShmTransport.open({kArena, kFifo});
      REQUIRE(host.ok());
      process.host = std::move(host).value();
      std::string name = process.host->address();
      name.resize(kName, ' ');
      REQUIRE(::write(mine.get(), name.data(), kName) == kName);
      for (int r = 0; r < size; ++r) {
        std::string address(kName, ' ');
        REQUIRE(::recv(mine.get(), address.data(), kName, MSG_WAITALL) ==
                kName);
        address.resize(address.find(' '));
        process.addresses.push_back(address);
      }
      body(process);
    }
    ::_exit(0);
  }

  inline static int parent = -1;  // In a child.
  std::vector<pid_t> pids_;
  std::vector<Fd> control_;
};

TEST(ShmProcesses, CarryEverySizeBetweenAllPairs) {
  for (const int size : {1, 2, 5}) {
    Job job(size, [](Process& me) {
      REQUIRE(me.Connect().ok());
      const std::vector<std::size_t> sizes = {
          0, 1, 31, 32, 33, 4096, kFifo - 1, kFifo, kFifo + 1, 5000000, 7};
      for (int peer = 0; peer < me.size; ++peer) {
        if (peer == me.rank) continue;
        REQUIRE(me.end.to(peer).kind() == std::string("shm"));
        for (std::size_t i = 0; i < sizes.size(); ++i) {
          me.end.Send(peer, 100U * me.rank + i, sizes[i]);
        }
      }
      const std::size_t expected = sizes.size() * (me.size - 1);
      REQUIRE(me.end.Await([&] {
        return me.end.messages == expected && me.end.sent.size() == expected;
      }));
      std::vector<std::size_t> next(me.size);
      for (const auto& message : me.end.received) {
        REQUIRE(Intact(message));
        REQUIRE(message.header.tag ==
                100U * message.peer + next[message.peer]++);
      }
    });
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_TRUE(job.Join(rank)) << "rank " << rank << " of " << size;
    }
  }
}

TEST(ShmProcesses, PingPongAcrossProcessesLosesNoWakeUp) {
  Job job(2, [](Process& me) {
    REQUIRE(me.Connect().ok());
    me.end.keep_payloads = false;
    const int peer = 1 - me.rank;
    for (int i = 0; i < 5000; ++i) {
      if (me.rank == 0) me.end.Send(peer, i, 64);
      REQUIRE(me.end.Await([&] { return me.end.messages > std::size_t(i); }));
      if (me.rank == 1) me.end.Send(peer, i, 64);
    }
    REQUIRE(
        me.end.Await([&] { return me.end.to(peer).queued_messages() == 0; }));
  });
  EXPECT_TRUE(job.Join(0));
  EXPECT_TRUE(job.Join(1));
}

TEST(ShmProcesses, SeeEachOthersWindowsAndSlots) {
  constexpr std::size_t kBytes = 100003;
  Job job(3, [](Process& me) {
    SharedArena& arena = *me.host->arena();
    const BufferView window = arena.Allocate(kBytes).value();
    REQUIRE(me.Connect().ok());
    REQUIRE(arena.members() == (std::vector<int>{0, 1, 2}));
    const auto mine = testing::Pattern(me.rank, kBytes);
    std::memcpy(window.data, mine.data(), kBytes);
    SyncSlot& slot = arena.slot(me.rank, 7);
    slot.offset = arena.OffsetOf(window.data);
    slot.arrived.store(1, std::memory_order_release);
    arena.RingSleepers();
    arena.RingMissed();
    for (const int peer : arena.members()) {
      SyncSlot& theirs = arena.slot(peer, 7);
      REQUIRE(me.end.Await(
          [&] { return theirs.arrived.load(std::memory_order_acquire) == 1; }));
      const std::byte* const seen = arena.At(peer, theirs.offset, kBytes);
      REQUIRE(seen != nullptr);
      REQUIRE(std::memcmp(seen, testing::Pattern(peer, kBytes).data(),
                          kBytes) == 0);
    }
    // The memory may go when all have read it.
    arena.slot(me.rank, 8).arrived.store(1, std::memory_order_release);
    arena.RingSleepers();
    arena.RingMissed();
    for (const int peer : arena.members()) {
      REQUIRE(me.end.Await([&] {
        return arena.slot(peer, 8).arrived.load() == 1 || !me.end.down.empty();
      }));
    }
  });
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(job.Join(rank));
}

// Both a busy and a blocked survivor learn of it in well under a second.
TEST(ShmProcesses, KillOfAPeerIsToldAtOnceAndLeavesNothingBehind) {
  const std::size_t files = CountEntries("/dev/shm");
  Job job(3, [](Process& me) {
    REQUIRE(me.Connect().ok());
    Job::Say();
    const auto start = me.clock.Now();
    if (me.rank == 0) {
      while (me.end.down.empty()) me.end.PollOnce();
    } else {
      REQUIRE(me.end.Await([&] { return !me.end.down.empty(); }));
    }
    REQUIRE(me.end.down[0].first == 2);
    REQUIRE(me.end.down[0].second.code() == StatusCode::kUnavailable);
    REQUIRE(me.clock.Now() - start < std::chrono::seconds(15));
    // The survivors continue with each other. The other may have seen the death
    // first, so its message may be here already.
    me.end.Send(1 - me.rank, 1, 100000);
    REQUIRE(me.end.Await([&] {
      return me.end.messages == 1 &&
             me.end.to(1 - me.rank).queued_messages() == 0;
    }));
  });
  for (int rank = 0; rank < 3; ++rank) job.AwaitWord(rank);
  job.Kill(2);
  EXPECT_TRUE(job.Join(0));
  EXPECT_TRUE(job.Join(1));
  EXPECT_FALSE(job.Join(2));
  EXPECT_EQ(CountEntries("/dev/shm"), files);
}

TEST(ShmProcesses, DeathIsToldEvenIfAnotherProcessKeepsTheSocket) {
  Job job(2, [](Process& me) {
    REQUIRE(me.Connect().ok());
    if (me.rank == 1) {
      // Copies of descriptors that forks do not know to close.
      for (int fd = 3; fd < 64; ++fd) static_cast<void>(::dup(fd));
      const pid_t worker = ::fork();
      REQUIRE(worker >= 0);
      if (worker == 0) {
        ::alarm(25);  // Until rank 0 has checked.
        ::pause();
        ::_exit(0);
      }
      me.host->arena()->slot(1, 0).offset = static_cast<std::uint64_t>(worker);
      me.host->arena()->slot(1, 0).arrived.store(1);
      me.host->arena()->RingSleepers();
      ::raise(SIGKILL);
    }
    REQUIRE(me.end.Await([&] { return !me.end.down.empty(); }));
    REQUIRE(me.end.down[0].first == 1);
    REQUIRE(me.end.down[0].second.message().find("ended") != std::string::npos);
    SyncSlot& slot = me.host->arena()->slot(1, 0);
    REQUIRE(slot.arrived.load() == 1);
    ::kill(static_cast<pid_t>(slot.offset), SIGKILL);
  });
  EXPECT_TRUE(job.Join(0));
  EXPECT_FALSE(job.Join(1));
}

TEST(ShmProcesses, AnotherSessionIsRefusedOnBothSides) {
  Job job(2, [](Process& me) {
    const Status seen = me.Connect(kSession + std::to_string(me.rank), 0, 1000);
    REQUIRE(!seen.ok());
    if (me.rank == 0) {
      // Rank 1 has ended by then.
      REQUIRE(seen.code() == StatusCode::kUnavailable);
      REQUIRE(Says(seen, "rank 0 to rank 1"));
      REQUIRE(Says(seen, "another session"));
    } else {
      REQUIRE(seen.code() == StatusCode::kUnavailable);
      REQUIRE(Says(seen, "rank 1 to rank 0"));
    }
  });
  EXPECT_TRUE(job.Join(0));
  EXPECT_TRUE(job.Join(1));
}

TEST(ShmProcesses, AnotherJobSizeIsRefused) {
  Job job(2, [](Process& me) {
    const Status seen = me.Connect(kSession, me.rank == 0 ? 2 : 3, 1000);
    REQUIRE(!seen.ok());
    if (me.rank == 0) {
      REQUIRE(Says(seen, "expected a job of size 2, seen 3"));
    }
  });
  EXPECT_TRUE(job.Join(0));
  EXPECT_TRUE(job.Join(1));
}

// It cannot take the connection of rank 1, or the memory that comes with it.
TEST(ShmProcesses, NoDescriptorsAreSaidToBeThat) {
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
  GTEST_SKIP() << "the undefined-behaviour sanitizer needs descriptors itself";
#endif
#endif
  for (const int left : {0, 1}) {
    Job job(2, [left](Process& me) {
      if (me.rank == 0) {
        const int next = ::dup(0);
        ::close(next);
        const auto most = static_cast<rlim_t>(next + left);
        const rlimit few = {most, most};
        REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
      }
      const Status seen = me.Connect(kSession, 0, me.rank == 0 ? 3000 : 100);
      REQUIRE(!seen.ok());
      REQUIRE(me.rank != 0 || seen.code() == StatusCode::kResourceExhausted);
    });
    EXPECT_TRUE(job.Join(0));
    EXPECT_TRUE(job.Join(1));
  }
}

TEST(ShmProcesses, MissingRanksAreNamedAtTheDeadline) {
  Job job(4, [](Process& me) {
    if (me.rank == 1 || me.rank == 3) {
      Job::AwaitParent();
      return;
    }
    const Status seen = me.Connect(kSession, 0, 1000);
    REQUIRE(seen.code() == StatusCode::kDeadlineExceeded);
    REQUIRE(Says(seen, "rank(s) 1, 3"));
  });
  EXPECT_TRUE(job.Join(0));
  EXPECT_TRUE(job.Join(2));
  for (const int rank : {1, 3}) {
    job.Release(rank);
    EXPECT_TRUE(job.Join(rank));
  }
}

Fd Stranger(const std::string& name, const std::string& words) {
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un to = {};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path + 1, name.data(), name.size());
  REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to),
                    static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                           name.size())) == 0);
  REQUIRE(::write(fd.get(), words.data(), words.size()) ==
          static_cast<ssize_t>(words.size()));
  return fd;
}

TEST(ShmProcesses, StrangersThatTalkOrAreSilentDelayNobody) {
  Job job(2, [](Process& me) {
    std::vector<Fd> strangers;
    if (me.rank == 0) {
      for (const char* words : {"", "GET / HTTP/1.1", "", "x"}) {
        strangers.push_back(Stranger(me.addresses[0], words));
      }
      strangers.push_back(Stranger(me.addresses[0], std::string(300, 'h')));
    }
    REQUIRE(me.Connect().ok());
    me.end.Send(1 - me.rank, 1, 10);
    REQUIRE(me.end.Await([&] {
      return me.end.messages == 1 &&
             me.end.to(1 - me.rank).queued_messages() == 0;
    }));
  });
  EXPECT_TRUE(job.Join(0));
  EXPECT_TRUE(job.Join(1));
}

TEST(ShmProcesses, LeaveNoDescriptorBehind) {
  Job job(2, [](Process& me) {
    REQUIRE(me.Connect().ok());
    const std::size_t connected = CountEntries("/proc/self/fd");
    me.end.Send(1 - me.rank, 1, 10);
    REQUIRE(me.end.Await([&] {
      return me.end.messages == 1 &&
             me.end.to(1 - me.rank).queued_messages() == 0;
    }));
    me.end.Drop(1 - me.rank);
    const std::size_t dropped = CountEntries("/proc/self/fd");
    REQUIRE(dropped < connected);
    me.host.reset();
    REQUIRE(CountEntries("/proc/self/fd") < dropped);
    auto again = kShmTransport.open({kArena, kFifo});
    REQUIRE(again.ok());
    again = Status(StatusCode::kInternal, "dropped");
    REQUIRE(CountEntries("/proc/self/fd") == dropped - 1);
  });
  EXPECT_TRUE(job.Join(0));
  EXPECT_TRUE(job.Join(1));
}

TEST(ShmEndpoint, IdIsTheSameInEveryProcessOfTheHost) {
  const std::string id = kShmTransport.host_id();
  EXPECT_FALSE(id.empty());
  EXPECT_EQ(id, kShmTransport.host_id());
  Job job(1, [&](Process&) { REQUIRE(kShmTransport.host_id() == id); });
  EXPECT_TRUE(job.Join(0));
}

}  // namespace
}  // namespace gradientflow
