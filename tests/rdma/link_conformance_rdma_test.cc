#include <gtest/gtest.h>

#include <cstddef>

#include "tests/rdma/rdma_fixture.h"
#include "tests/transports/link_conformance.h"

// RDMA links join the link conformance suite, on devices that are memory.
namespace gradientflow::testing {
namespace {

const auto* const network =
    ::testing::AddGlobalTestEnvironment(new RdmaNetwork(2));

template <std::size_t kPlacedBytes>
LinkKind Rdma() {
  return {"rdma", [](LinkOwner* a, LinkOwner* b) {
            TransportOptions options = OptionsOfTests();
            options.placed_slot_bytes = kPlacedBytes;
            options.placed_notices = 8;
            const auto one = OpenRank(0, 2, options);
            const auto other = OpenRank(1, 2, options);
            JoinEndpoints(one.get(), other.get(), a, b);
          }};
}

INSTANTIATE_TEST_SUITE_P(Rdma, LinkConformance, ::testing::Values(Rdma<0>()));
INSTANTIATE_TEST_SUITE_P(RdmaWithPlaces, LinkConformance,
                         ::testing::Values(Rdma<65536>()));

}  // namespace
}  // namespace gradientflow::testing
