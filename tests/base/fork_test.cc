#include "gradientflow/base/fork.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>
#include <utility>

#include "gradientflow/base/fd.h"

namespace gradientflow {
namespace {

// Runs `body` in a fork, and returns the fork's exit status.
int ExitOfFork(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

Fd NewSocket() { return Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

TEST(Fork, MarkTellsForksAndForksOfForks) {
  const ProcessMark here;
  EXPECT_FALSE(here.forked());
  EXPECT_EQ(ExitOfFork([&] {
              const ProcessMark there;
              if (!here.forked() || there.forked()) return 1;
              return ExitOfFork(
                  [&] { return here.forked() && there.forked() ? 7 : 1; });
            }),
            7);
  EXPECT_FALSE(here.forked());
}

TEST(Fork, ChildHasOnlyDescriptorsThatNobodyOwns) {
  // A number beyond the first words of any table.
  const Fd low = NewSocket();
  const Fd high(::fcntl(low.get(), F_DUPFD_CLOEXEC, 500));
  Fd closed = NewSocket();
  closed.Reset();
  const int common = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(ExitOfFork([&] {
              return !IsOpen(low.get()) && !IsOpen(high.get()) && IsOpen(common)
                         ? 0
                         : 1;
            }),
            0);
  EXPECT_TRUE(IsOpen(low.get()) && IsOpen(high.get()));
  ::close(common);
}

TEST(Fork, ChildsOwnDescriptorSurvivesTheOwnerItInherited) {
  Fd inherited = NewSocket();
  EXPECT_EQ(ExitOfFork([&] {
              const Fd mine = NewSocket();
              if (mine.get() != inherited.get()) return 1;
              inherited.Reset();
              return IsOpen(mine.get()) ? 0 : 2;
            }),
            0);
}

TEST(Fork, MovedDescriptorIsClosedOnce) {
  Fd first = NewSocket();
  Fd second = std::move(first);
  EXPECT_FALSE(first.valid());  // NOLINT(bugprone-use-after-move): its state.
  const int number = second.get();
  first = std::move(second);
  EXPECT_EQ(ExitOfFork([&] { return IsOpen(number) ? 1 : 0; }), 0);
  EXPECT_TRUE(IsOpen(number));
  first.Reset();
  EXPECT_FALSE(IsOpen(number));
}

TEST(Fork, ChildReadsSharedMemoryAndWritesItsOwn) {
  constexpr std::size_t kBytes = 8192;
  const Fd file(::memfd_create("fork-test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), kBytes), 0);
  void* const mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED, file.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const bytes = static_cast<volatile char*>(mapped);
  PrivateInForks(mapped, kBytes, file.get());
  bytes[5000] = 'a';
  EXPECT_EQ(ExitOfFork([&] {
              if (bytes[5000] != 'a') return 1;
              bytes[5000] = 'b';
              // The same holds in its forks.
              return ExitOfFork([&] {
                if (bytes[5000] != 'b') return 2;
                bytes[5000] = 'c';
                return 0;
              });
            }),
            0);
  EXPECT_EQ(bytes[5000], 'a');
  UnmapHere(mapped, kBytes);
}

TEST(Fork, SpawnedProgramChangesNothingHere) {
  const Fd socket = NewSocket();
  char name[] = "/bin/true";
  char* arguments[] = {name, nullptr};
  char* environment[] = {nullptr};
  const ProcessMark here;
  pid_t pid = 0;
  ASSERT_EQ(::posix_spawn(&pid, name, nullptr, nullptr, arguments, environment),
            0);
  int status = -1;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ExitOfFork([&] {
              ::execve(name, arguments, environment);
              return 1;
            }),
            0);
  EXPECT_TRUE(IsOpen(socket.get()));
  EXPECT_FALSE(here.forked());
}

}  // namespace
}  // namespace gradientflow
