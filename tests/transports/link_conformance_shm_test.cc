#include <gtest/gtest.h>

#include <memory>

#include "tests/transports/link_conformance.h"
#include "tests/transports/raw_shm_peer.h"
#include "transports/shm/create.h"

// Shared memory joins the link conformance suite.
namespace gradientflow::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Shm, LinkConformance,
                         ::testing::Values(LinkKind{
                             "shm",
                             [](LinkOwner* a, LinkOwner* b) {
                               JoinByEndpoints(kShmTransport, a, b);
                             },
                             [](LinkOwner* owner) -> std::unique_ptr<RawPeer> {
                               return std::make_unique<RawShmPeer>("shm",
                                                                   owner);
                             }}));

}  // namespace
}  // namespace gradientflow::testing
