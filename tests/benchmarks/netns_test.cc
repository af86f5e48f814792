#include "benchmarks/netns.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "benchmarks/ranks.h"
#include "gtest/gtest.h"

namespace gradientflow::benchmarks {
namespace {

// Also root may lack the right to make namespaces, in a container.
bool Impossible(const Result<LinkedHosts>& hosts) {
  return !hosts.ok() &&
         hosts.status().code() == StatusCode::kFailedPrecondition;
}

constexpr char kSkipped[] = "SKIPPED, needs root, ip and tc: ";

sockaddr_in AddressOf(int host) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(5201);
  inet_pton(AF_INET, LinkedHosts::Address(host).c_str(), &address.sin_addr);
  return address;
}

Status Failed(const char* what) { return Status(StatusCode::kInternal, what); }

// Receives all that a peer sends; returns bits per second after the first
// quarter, which fills the token bucket.
Result<std::string> Receive(int listener, std::size_t bytes) {
  const int fd = accept(listener, nullptr, nullptr);
  if (fd < 0) return Failed("accept");
  std::vector<char> buffer(1 << 16);
  std::size_t seen = 0;
  std::size_t counted_from = 0;
  auto begin = std::chrono::steady_clock::now();
  while (seen < bytes) {
    const ssize_t n = recv(fd, buffer.data(), buffer.size(), 0);
    if (n <= 0) return Failed("recv");
    seen += static_cast<std::size_t>(n);
    if (counted_from == 0 && seen >= bytes / 4) {
      counted_from = seen;
      begin = std::chrono::steady_clock::now();
    }
  }
  const std::chrono::duration<double> taken =
      std::chrono::steady_clock::now() - begin;
  return std::to_string(8 * static_cast<double>(bytes - counted_from) /
                        taken.count());
}

Result<std::string> Send(int host, std::size_t bytes) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = AddressOf(host);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address),
              sizeof(address)) != 0) {
    return Failed("connect");
  }
  const std::vector<char> buffer(1 << 16);
  for (std::size_t sent = 0; sent < bytes; sent += buffer.size()) {
    if (send(fd, buffer.data(), buffer.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(buffer.size())) {
      return Failed("send");
    }
  }
  char end = 0;
  recv(fd, &end, 1, 0);  // Until the peer has read all.
  return std::string();
}

TEST(LinkedHosts, StreamGetsNoMoreThanTheLinksRateAndMostOfIt) {
  LinkSettings settings;
  settings.gbps = 0.2;
  const auto hosts = LinkedHosts::Create(2, settings);
  if (Impossible(hosts)) GTEST_SKIP() << kSkipped << hosts.status().message();
  ASSERT_TRUE(hosts.ok()) << hosts.status().ToString();
  constexpr std::size_t kBytes = 8 << 20;
  // The listener exists before either host runs, so none waits for another.
  const auto listen_on = RunRanks(1, [&](int) -> Result<std::string> {
    GF_RETURN_IF_ERROR(hosts.value().Enter(0));
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = AddressOf(0);
    if (bind(listener, reinterpret_cast<const sockaddr*>(&address),
             sizeof(address)) != 0 ||
        listen(listener, 1) != 0) {
      return Failed("listen");
    }
    const auto rates = RunRanks(2, [&](int host) -> Result<std::string> {
      if (host == 0) return Receive(listener, kBytes);
      GF_RETURN_IF_ERROR(hosts.value().Enter(1));
      return Send(0, kBytes);
    });
    if (!rates.ok()) return rates.status();
    return rates.value()[0];
  });
  ASSERT_TRUE(listen_on.ok()) << listen_on.status().ToString();
  const double rate = std::stod(listen_on.value()[0]);
  EXPECT_LT(rate, 0.2e9 * 1.02);
  EXPECT_GT(rate, 0.2e9 * 0.80);  // A busy machine; an idle one: 0.95.
}

TEST(LinkedHosts, EachHasOneInterfaceAndThisProcessKeepsItsOwn) {
  const unsigned before = if_nametoindex("bridge0");
  const auto hosts = LinkedHosts::Create(3, LinkSettings{});
  if (Impossible(hosts)) GTEST_SKIP() << kSkipped << hosts.status().message();
  ASSERT_TRUE(hosts.ok()) << hosts.status().ToString();
  EXPECT_EQ(if_nametoindex("bridge0"), before);
  const auto seen = RunRanks(3, [&](int host) -> Result<std::string> {
    GF_RETURN_IF_ERROR(hosts.value().Enter(host));
    if (if_nametoindex("eth0") == 0) return Failed("no eth0");
    if (if_nametoindex("bridge0") != 0) return Failed("bridge0 is visible");
    return std::string();
  });
  EXPECT_TRUE(seen.ok()) << seen.status().ToString();
}

TEST(LinkedHosts, SettingsOutOfRangeAreErrors) {
  for (const double gbps : {0.0, -1.0, 1e9}) {
    LinkSettings settings;
    settings.gbps = gbps;
    const auto hosts = LinkedHosts::Create(2, settings);
    ASSERT_FALSE(hosts.ok());
    EXPECT_EQ(hosts.status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(LinkedHosts::Create(0, LinkSettings{}).ok());
  EXPECT_FALSE(LinkedHosts::Create(251, LinkSettings{}).ok());
}

}  // namespace
}  // namespace gradientflow::benchmarks
