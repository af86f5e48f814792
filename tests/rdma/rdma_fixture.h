#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "tests/rdma/cards.h"
#include "tests/rdma/fake_verbs.h"
#include "tests/transports/link_conformance.h"
#include "tests/transports/link_owner.h"
#include "transports/endpoint.h"
#include "transports/rdma/rdma_endpoint.h"
#include "transports/rdma/verbs_api.h"

namespace gradientflow::testing {

// The network of a test program: hosts with a device each, fake or real (see
// cards.h). Nothing may be left of anybody's objects in the end.
class RdmaNetwork : public ::testing::Environment {
 public:
  explicit RdmaNetwork(int hosts, const FakeVerbsOptions& options = {})
      : hosts_(hosts), options_(options) {}
  void SetUp() override {
    if (!real()) fake = std::make_unique<FakeVerbs>(hosts_, options_);
  }
  void TearDown() override { fake.reset(); }

  static bool real() { return !RealCards().empty(); }
  static std::shared_ptr<const VerbsApi> verbs(int host) {
    return real() ? LoadVerbs().value() : fake->api(host);
  }
  static std::unique_ptr<FakeVerbs> fake;  // Null if they are real.

 private:
  const int hosts_;
  const FakeVerbsOptions options_;
};
inline std::unique_ptr<FakeVerbs> RdmaNetwork::fake;

// The endpoint of rank `rank` of `ranks`, on its own host.
inline std::unique_ptr<Endpoint> OpenRank(int rank, int ranks,
                                          TransportOptions options) {
  options.rank = rank;
  options.ranks = ranks;
  if (RdmaNetwork::real()) {
    options.own["rdma_devices"] = StrCat("=", RealCards(), rank, ":1");
  }
  auto opened = OpenRdma(options, RdmaNetwork::verbs(rank));
  EXPECT_TRUE(opened.ok()) << opened.status().ToString();
  return opened.ok() ? std::move(opened).value() : nullptr;
}

}  // namespace gradientflow::testing
