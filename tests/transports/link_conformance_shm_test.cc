#include <gtest/gtest.h>

#include <memory>

#include "tests/transports/link_conformance.h"
#include "tests/transports/raw_shm_peer.h"
#include "transports/shm/create.h"

// Shared memory joins the link conformance suite.
namespace gradientflow::testing {
namespace {

const LinkKind kShm = {
    "shm",
    [](LinkOwner* a, LinkOwner* b) { JoinByEndpoints(kShmTransport, a, b); },
    [](LinkOwner* owner) -> std::unique_ptr<RawPeer> {
      return std::make_unique<RawShmPeer>("shm", owner);
    }};
INSTANTIATE_TEST_SUITE_P(Shm, LinkConformance, ::testing::Values(kShm));
INSTANTIATE_TEST_SUITE_P(Shm, StreamConformance, ::testing::Values(kShm));

}  // namespace
}  // namespace gradientflow::testing
