#include "gradientflow/config/options.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace gradientflow {
namespace {

Options Valid() {
  Options options;
  options.rank = 0;
  options.size = 2;
  options.rendezvous = "127.0.0.1:29500";
  return options;
}

TEST(OptionsValidate, TakesDefaultsOnceRankAndSizeAreSet) {
  EXPECT_TRUE(Valid().Validate().ok()) << Valid().Validate().message();
  Options alone;
  alone.rank = 0;
  alone.size = 1;
  EXPECT_TRUE(alone.Validate().ok());
}

struct Case {
  const char* named;  // Must appear in the message.
  std::function<void(Options*)> spoil;
};

TEST(OptionsValidate, NamesTheFieldThatIsWrong) {
  const float nan = std::nanf("");
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<Case> cases = {
      {"rank and size", [](Options* o) { o->rank = o->size = -1; }},
      {"rank and size", [](Options* o) { o->size = -1; }},
      {"rank", [](Options* o) { o->rank = -2; }},
      {"rank", [](Options* o) { o->rank = 2; }},
      {"size", [](Options* o) { o->size = 0; }},
      {"rendezvous", [](Options* o) { o->rendezvous.clear(); }},
      {"rendezvous", [](Options* o) { o->rendezvous = "host"; }},
      {"GRADIENTFLOW_JOB_TOKEN",
       [](Options* o) { o->rendezvous = "node1:29500"; }},
      {"fabric", [](Options* o) { o->fabric = "ship"; }},
      {"connections", [](Options* o) { o->connections = -1; }},
      {"segment_bytes", [](Options* o) { o->segment_bytes = 100; }},
      {"segment_bytes", [](Options* o) { o->segment_bytes = 4097; }},
      {"segment_bytes", [](Options* o) { o->segment_bytes = kAutoBytes; }},
      {"segments_in_flight", [](Options* o) { o->segments_in_flight = 0; }},
      {"arena_bytes", [](Options* o) { o->arena_bytes = 0; }},
      {"fifo_bytes", [](Options* o) { o->fifo_bytes = 1; }},
      {"spin_microseconds", [](Options* o) { o->spin_microseconds = -7; }},
      {"pool_dtype", [](Options* o) { o->pool_dtype = DType::kInt32; }},
      {"wire_dtype", [](Options* o) { o->wire_dtype = DType::kFloat64; }},
      {"wire_dtype",
       [](Options* o) { o->wire_dtype = static_cast<DType>(77); }},
      {"reduce", [](Options* o) { o->reduce = ReduceOp::kMax; }},
      {"loss_scale", [=](Options* o) { o->loss_scale = nan; }},
      {"loss_scale", [](Options* o) { o->loss_scale = 0; }},
      {"algorithm", [](Options* o) { o->algorithm = "magic"; }},
      {"sparsity", [](Options* o) { o->sparsity = 1; }},
      {"sparsity", [=](Options* o) { o->sparsity = nan; }},
      {"chunk_elements", [](Options* o) { o->chunk_elements = 0; }},
      {"momentum", [](Options* o) { o->momentum = 1; }},
      {"timeout_seconds", [](Options* o) { o->timeout_seconds = 0; }},
      {"timeout_seconds", [=](Options* o) { o->timeout_seconds = inf; }},
      {"heartbeat_timeout_seconds",
       [](Options* o) { o->heartbeat_timeout_seconds = -1; }},
      {"join_timeout_seconds",
       [=](Options* o) { o->join_timeout_seconds = std::nan(""); }},
      {"timeline", [](Options* o) { o->timeline = "one-for-all.json"; }},
  };
  for (const Case& test : cases) {
    Options options = Valid();
    test.spoil(&options);
    const Status status = options.Validate();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << test.named;
    EXPECT_NE(status.message().find(test.named), std::string::npos)
        << test.named << " is not in: " << status.message();
  }
}

// Whoever can reach a rendezvous over the network must prove more than that.
TEST(OptionsValidate, OnlyARendezvousThatOthersCannotReachNeedsNoToken) {
  const auto needs_token = [](const char* rendezvous) {
    Options options = Valid();
    options.rendezvous = rendezvous;
    return !options.Validate().ok();
  };
  for (const char* here : {"127.0.0.1:80", "127.0.1.1:80", "localhost:80",
                           "[::1]:80", "file:///a/folder"}) {
    EXPECT_FALSE(needs_token(here)) << here;
  }
  for (const char* there : {"10.0.0.1:80", "node1:80", "0.0.0.0:80", "[::]:80",
                            "localhost.example.org:80", "[fd00::1]:80",
                            "127.example.org:80", "127.1:80"}) {
    EXPECT_TRUE(needs_token(there)) << there;
  }
  Options options = Valid();
  options.rendezvous = "node1:80";
  options.fabric = "shm";
  EXPECT_FALSE(options.Validate().ok()) << "anybody may come to node1";
}

TEST(OptionsValidate, SparsityWithoutMomentumNeedsThePlainResidual) {
  Options options = Valid();
  options.momentum = 0;
  EXPECT_TRUE(options.Validate().ok()) << "dense";
  options.sparsity = 0.5F;
  const Status status = options.Validate();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("plain"), std::string::npos);
  options.residual = ResidualMode::kPlain;
  EXPECT_TRUE(options.Validate().ok());
}

TEST(OptionsValidate, TimelinesOfSeveralRanksNeedSeveralNames) {
  Options options = Valid();
  options.timeline = "trace.%r.json";
  EXPECT_TRUE(options.Validate().ok());
  options.timeline = "trace.json";
  EXPECT_FALSE(options.Validate().ok());
  options.size = 1;
  EXPECT_TRUE(options.Validate().ok());
}

}  // namespace
}  // namespace gradientflow
