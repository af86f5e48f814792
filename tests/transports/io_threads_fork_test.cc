#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "tests/transports/link_owner.h"
#include "tests/transports/tcp_pair.h"

// A fork has copies of a rank's links, but none of its io threads.
namespace gradientflow {
namespace {

using testing::Drive;
using testing::LinkOwner;

constexpr unsigned kPatienceSeconds = 30;

TEST(ForkWithLoans, TheChildDropsTheLinksAndTheParentGoesOn) {
  constexpr std::size_t kBytes = std::size_t{24} << 20;
  for (int round = 0; round < 10; ++round) {
    LinkOwner a, b;
    std::vector<Socket> left, right;
    for (int lane = 0; lane < 2; ++lane) {
      auto made = tcp_test::MakeConnection("127.0.0.1:0").value();
      left.push_back(std::move(made.one));
      right.push_back(std::move(made.other));
    }
    a.TakeOne(tcp_test::MakeLink(1, std::move(left), &a, 2));
    b.TakeOne(tcp_test::MakeLink(1, std::move(right), &b, 2));
    a.Send(1, 1, kBytes, 1);
    b.Send(1, 2, kBytes, 1);
    ASSERT_TRUE(Drive({&a, &b}, [&] { return a.headers + b.headers == 2; }));
    // Fast io threads may have written a whole message by now.
    const std::size_t sent = a.sent.size();
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::alarm(kPatienceSeconds);  // A hang is a failure.
      a.Drop(1);
      b.Drop(1);
      ::_exit(a.sent.size() == sent && b.down.empty() ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
    ASSERT_TRUE(Drive({&a, &b}, [&] { return a.messages + b.messages == 2; }));
    EXPECT_TRUE(Intact(a.received[0]) && Intact(b.received[0]));
  }
}

}  // namespace
}  // namespace gradientflow
