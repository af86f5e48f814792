#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include "tests/rdma/verbs_rules.h"
#include "transports/rdma/devices.h"
#include "transports/rdma/verbs_api.h"

// The rules of verbs, on the first two devices of this machine. Soft-RoCE is
// enough: tests/guest/verbs_rules.sh.
namespace gradientflow {
namespace {

VerbsWorld Kernel() {
  VerbsWorld world;
  const auto verbs = LoadVerbs();
  if (!verbs.ok()) {
    world.missing = verbs.status().message();
    return world;
  }
  const auto devices = ListRdmaDevices(*verbs.value());
  if (!devices.ok() || devices.value().size() < 2) {
    world.missing = devices.ok() ? "there are fewer than two RDMA devices"
                                 : devices.status().message();
    return world;
  }
  for (std::size_t i = 0; i < 2; ++i) {
    world.verbs.at(i) = verbs.value();
    world.devices.at(i) = devices.value()[i].name;
  }
  return world;
}

INSTANTIATE_TEST_SUITE_P(Kernel, VerbsRules,
                         ::testing::Values(VerbsWorldKind{"Devices", &Kernel}),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace gradientflow
