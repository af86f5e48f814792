#include <gtest/gtest.h>

#include <memory>

#include "tests/transports/link_conformance.h"
#include "tests/transports/raw_shm_peer.h"
#include "transports/inproc/create.h"

// Links between threads join the link conformance suite.
namespace gradientflow::testing {
namespace {

void JoinThreads(LinkOwner* a, LinkOwner* b) {
  auto group = InprocGroup::Create(2, {std::size_t{16} << 20, 8192}).value();
  a->Take(group->Connect(0, a->poller(), a).value());
  b->Take(group->Connect(1, b->poller(), b).value());
}

const LinkKind kInproc = {
    "inproc", &JoinThreads, [](LinkOwner* owner) -> std::unique_ptr<RawPeer> {
      return std::make_unique<RawShmPeer>("inproc", owner);
    }};
INSTANTIATE_TEST_SUITE_P(Inproc, LinkConformance, ::testing::Values(kInproc));
INSTANTIATE_TEST_SUITE_P(Inproc, StreamConformance, ::testing::Values(kInproc));

}  // namespace
}  // namespace gradientflow::testing
