#include "tests/rdma/fake_verbs.h"

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/rdma/verbs_rules.h"

// Fake devices follow the rules of verbs, however their time passes.
namespace gradientflow {
namespace {

VerbsWorld World(const FakeVerbsOptions& options) {
  const auto fake = std::make_shared<FakeVerbs>(2, options);
  VerbsWorld world;
  world.verbs = {fake->api(0), fake->api(1)};
  world.devices = {"fake0", "fake1"};
  if (options.stepped) world.move = [fake] { fake->Step(); };
  world.owner = fake;
  return world;
}

std::vector<VerbsWorldKind> Kinds() {
  FakeVerbsOptions usual;
  usual.rnr_is_a_problem = false;  // It is one of the rules.
  FakeVerbsOptions at_once = usual;
  at_once.late_share = 0;
  FakeVerbsOptions late = usual;
  late.late_share = 0.9;
  late.late_by = std::chrono::microseconds(100);
  FakeVerbsOptions stepped = late;
  stepped.stepped = true;
  stepped.delay = std::chrono::milliseconds(20);
  FakeVerbsOptions lossy = stepped;
  lossy.lost = 0.02;
  lossy.lost_acks = 0.2;
  const auto kind = [](const std::string& name,
                       const FakeVerbsOptions& options) {
    return VerbsWorldKind{name, [options] { return World(options); }};
  };
  return {kind("Usual", usual), kind("AtOnce", at_once), kind("Late", late),
          kind("Stepped", stepped), kind("Lossy", lossy)};
}

INSTANTIATE_TEST_SUITE_P(Fake, VerbsRules, ::testing::ValuesIn(Kinds()),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace gradientflow
