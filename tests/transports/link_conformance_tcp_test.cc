#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tests/transports/link_conformance.h"
#include "tests/transports/tcp_pair.h"
#include "transports/tcp/create.h"
#include "transports/tcp/socket.h"

// TCP joins the link conformance suite.
namespace gradientflow::testing {
namespace {

class RawTcpPeer final : public RawPeer {
 public:
  RawTcpPeer(LinkOwner* owner, int io_threads) {
    tcp_test::Connection made = tcp_test::MakeConnection("127.0.0.1:0").value();
    socket_ = std::move(made.other);
    std::vector<Socket> lanes;
    lanes.push_back(std::move(made.one));
    owner->TakeOne(tcp_test::MakeLink(1, std::move(lanes), owner, io_threads));
  }
  void Write(std::span<const std::byte> bytes) override {
    EXPECT_EQ(Send(socket_, bytes.data(), bytes.size()),
              static_cast<std::int64_t>(bytes.size()));
  }

 private:
  Socket socket_;
};

template <int kIoThreads>
LinkKind Tcp() {
  return {"tcp",
          [](LinkOwner* a, LinkOwner* b) {
            JoinByEndpoints(kTcpTransport, a, b, kIoThreads);
          },
          [](LinkOwner* owner) -> std::unique_ptr<RawPeer> {
            return std::make_unique<RawTcpPeer>(owner, kIoThreads);
          }};
}

INSTANTIATE_TEST_SUITE_P(Tcp, LinkConformance, ::testing::Values(Tcp<0>()));
INSTANTIATE_TEST_SUITE_P(Tcp, StreamConformance, ::testing::Values(Tcp<0>()));
INSTANTIATE_TEST_SUITE_P(TcpWithAnIoThread, LinkConformance,
                         ::testing::Values(Tcp<1>()));
INSTANTIATE_TEST_SUITE_P(TcpWithAnIoThread, StreamConformance,
                         ::testing::Values(Tcp<1>()));
INSTANTIATE_TEST_SUITE_P(TcpWithThreeIoThreads, LinkConformance,
                         ::testing::Values(Tcp<3>()));
INSTANTIATE_TEST_SUITE_P(TcpWithThreeIoThreads, StreamConformance,
                         ::testing::Values(Tcp<3>()));

}  // namespace
}  // namespace gradientflow::testing
