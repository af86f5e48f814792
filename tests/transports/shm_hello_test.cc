#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gradientflow/base/fd.h"
#include "gradientflow/base/status.h"
#include "transports/shm/hello.h"

namespace gradientflow {
namespace {

// The offer can be answered: it came, though not the memory that it offers.
TEST(ShmHello, WithoutADescriptorForTheMemoryOnlyThatIsLost) {
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
  GTEST_SKIP() << "the undefined-behaviour sanitizer needs descriptors itself";
#endif
#endif
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
  const Fd one(sockets[0]);
  const Fd other(sockets[1]);
  Hello hello;
  hello.rank = 7;
  ASSERT_TRUE(SendHello(one, hello, STDERR_FILENO).ok());
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = ::dup(STDERR_FILENO);
  ::close(next);
  const rlimit none = {static_cast<rlim_t>(next), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const Result<ReceivedHello> received = ReceiveHello(other);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(received.ok()) << received.status().ToString();
  EXPECT_EQ(received.value().hello.rank, 7);
  EXPECT_FALSE(received.value().memory.valid());
  EXPECT_EQ(received.value().memory_lost.code(),
            StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace gradientflow
