#pragma once

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "transports/rdma/verbs_api.h"

// The rules of verbs that this project relies upon, as tests. Devices of the
// kernel and fake ones follow the same: a test of the transport by fake devices
// says something about real ones.
//
//   INSTANTIATE_TEST_SUITE_P(Fake, VerbsRules, ::testing::Values(...));
namespace gradientflow {

// Two devices that reach each other.
struct VerbsWorld {
  std::string missing;  // Why there are none, and the tests are skipped.
  std::array<std::shared_ptr<const VerbsApi>, 2> verbs;
  std::array<std::string, 2> devices;
  // Lets time pass, where it passes only then.
  std::function<void()> move = [] {};
  std::shared_ptr<void> owner;  // Of all that.
};

struct VerbsWorldKind {
  std::string name;
  std::function<VerbsWorld()> make;
};

inline void PrintTo(const VerbsWorldKind& kind, std::ostream* out) {
  *out << kind.name;
}

class VerbsRules : public ::testing::TestWithParam<VerbsWorldKind> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(VerbsRules);

}  // namespace gradientflow
