#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/collectives/executor_ranks.h"

// Calls that differ in any respect are never taken for the same.
namespace gradientflow::testing {
namespace {

using Random = std::mt19937_64;

struct Change {
  const char* what;
  void (*make)(CollectiveCall*, Random*);
};

std::size_t UpTo(Random* random, std::size_t most) {
  return 1 + (*random)() % most;
}

const Change kChanges[] = {
    {"kind",
     [](auto* c, Random*) {
       c->kind = c->kind == CollectiveKind::kAllreduce
                     ? CollectiveKind::kBroadcast
                     : CollectiveKind::kAllreduce;
     }},
    {"count", [](auto* c, Random* r) { c->count += UpTo(r, 100); }},
    {"dtype and wire",
     [](auto* c, Random*) { c->dtype = c->wire = DType::kInt32; }},
    {"wire", [](auto* c, Random*) { c->wire = DType::kBFloat16; }},
    {"operation", [](auto* c, Random*) { c->op = ReduceOp::kMax; }},
    {"scale",
     [](auto* c, Random* r) {
       c->scale += static_cast<float>(UpTo(r, 1000)) / 1024;
     }},
    {"root", [](auto* c, Random* r) { c->root += int(UpTo(r, 2)); }},
    {"algorithm", [](auto* c, Random*) { c->algorithm = &allreduce::kRing; }},
    {"step", [](auto* c, Random* r) { c->step += UpTo(r, 1 << 20); }},
    {"bucket", [](auto* c, Random* r) { c->bucket += UpTo(r, 1 << 10); }},
    {"place in the pool",
     [](auto* c, Random* r) {
       c->place = HashOf({{UpTo(r, 1 << 20), c->count}});
     }},
    {"extents",
     [](auto* c, Random* r) {
       c->place = 0;
       c->extents = {{UpTo(r, 100), c->count}};
     }},
};

class Signer {
 public:
  explicit Signer(std::size_t segment_bytes = 4096, int size = 4)
      : group_(GroupOf(size)),
        planner_(group_, TypicalCostModels(), {segment_bytes}) {}
  std::uint64_t operator()(const CollectiveCall& call) {
    return SignatureOf(call, planner_.Plan(call));
  }

 private:
  static CallGroup GroupOf(int size) {
    CallGroup group;
    group.size = size;
    group.topology.host.assign(static_cast<std::size_t>(size), 0);
    return group;
  }
  const CallGroup group_;  // The planner borrows it.
  CallPlanner planner_;
};

CollectiveCall SomeCall(Random* random) {
  CollectiveCall call;
  call.count = UpTo(random, 10000);
  call.op = ReduceOp::kMean;
  call.algorithm = &allreduce::kTwoSync;
  call.step = (*random)() % 100000;
  call.bucket = (*random)() % 100;
  call.place = HashOf({{(*random)() % 1000000, call.count}});
  return call;
}

TEST(Signature, ChangesWithAnythingThatChanges) {
  Random random(7);
  Signer sign;
  for (int i = 0; i < 20000; ++i) {
    const CollectiveCall call = SomeCall(&random);
    CollectiveCall other = call;
    std::string what;
    // Most pairs of calls differ in one respect.
    for (std::uint64_t n = random() % 4 == 0 ? 3 : 1; n > 0; --n) {
      const Change& change = kChanges[random() % std::size(kChanges)];
      change.make(&other, &random);
      what += std::string(" ") + change.what;
    }
    ASSERT_NE(sign(call), sign(other)) << "pair " << i << ":" << what;
    ASSERT_EQ(sign(call), sign(CollectiveCall(call)));
  }
}

// A small call takes less time than a decision.
TEST(CallPlanner, RemembersADecisionUntilTheCostsChange) {
  CallGroup group;
  group.size = 4;
  CallPlanner planner(group, TypicalCostModels(), {4096});
  CollectiveCall call;
  call.count = 1000;
  const CallPlan first = planner.Plan(call);
  EXPECT_EQ(planner.Plan(call).why, first.why);
  CollectiveCall asked = call;
  asked.algorithm = first.algorithm;
  EXPECT_EQ(*planner.Plan(asked).why, "asked for");
  EXPECT_EQ(planner.Plan(call).why, first.why);
  CollectiveCall longer = call;
  longer.count = 1001;
  EXPECT_NE(planner.Plan(longer).why, first.why);
  CostModels fast = TypicalCostModels();
  fast.together.across.latency_seconds = 1e-9;
  fast.alone.across.latency_seconds = 1e-9;
  planner.SetCosts(fast);
  EXPECT_NE(*planner.Plan(call).why, *first.why);
}

// From a root in the middle of a host, the short branches of a tree lead to
// other hosts, too.
TEST(CallPlanner, KnowsWhereTheRootOfATreeIs) {
  CallGroup group;
  group.size = 4;
  group.topology.host = {0, 0, 1, 1};
  const CostModel model{{1e-6, 0, 0, 0}, {100e-6, 0, 0, 0}};
  CallPlanner planner(group, {model, model}, {4096});
  const auto chosen = [&](CollectiveKind kind, int root) {
    CollectiveCall call;
    call.kind = kind;
    call.count = 1;
    call.root = root;
    return std::string(Name(planner.Plan(call).algorithm));
  };
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_EQ(chosen(CollectiveKind::kBroadcast, 0), "tree");
    EXPECT_EQ(chosen(CollectiveKind::kBroadcast, 1), "chain");
    EXPECT_EQ(chosen(CollectiveKind::kBroadcast, 2), "tree");
    EXPECT_EQ(chosen(CollectiveKind::kReduce, 0),
              chosen(CollectiveKind::kReduce, 1));
  }
}

TEST(Signature, HoldsTheSegmentsAndTheGroup) {
  Random random(8);
  const CollectiveCall call = SomeCall(&random);
  EXPECT_NE(Signer(4096)(call), Signer(8192)(call));
  EXPECT_NE(Signer(4096, 4)(call), Signer(4096, 5)(call));
}

// Two steps of `call` whose signatures have 32 bits in common, which happens
// once in some 100,000 steps.
std::pair<std::uint64_t, std::uint64_t> StepsThatLookAlike(
    const CallGroup& group, CollectiveCall call, int shift) {
  CallPlanner planner(group, TypicalCostModels(), {RanksSetup().segment_bytes});
  const CallPlan plan = planner.Plan(call);
  std::unordered_map<std::uint64_t, std::uint64_t> seen;
  for (call.step = 0;; ++call.step) {
    const std::uint64_t part = SignatureOf(call, plan) >> shift & 0xFFFFFFFF;
    const auto [at, fresh] = seen.emplace(part, call.step);
    if (!fresh) return {at->second, call.step};
  }
}

void ExpectNotTakenForOne(const RanksSetup& setup, const CollectiveCall& call,
                          int shift) {
  OnRanks(setup, [&](TestRank& rank) {
    const auto steps = StepsThatLookAlike(rank.group(), call, shift);
    std::vector<float> values(call.count, 1.0F);
    CollectiveCall mine = call;
    mine.output = values.data();
    mine.step = rank.rank() == 0 ? steps.first : steps.second;
    Ending ending;
    rank.executor().Start(mine, ending.done());
    rank.Drive([&] { return ending.over(); });
    EXPECT_FALSE(ending.status.ok())
        << Describe(setup) << ", steps " << steps.first << " and "
        << steps.second << ", alike in bits from " << shift;
  });
}

TEST(Signature, AllItsBitsAreCompared) {
  for (const CollectiveAlgorithm* algorithm :
       {&allreduce::kShared, &allreduce::kGdraa, &allreduce::kTwoSync}) {
    for (const int shift : {0, 16, 32}) {
      RanksSetup setup;
      setup.size = 2;
      setup.memory = algorithm == &allreduce::kShared;
      setup.places = algorithm == &allreduce::kGdraa;
      CollectiveCall call;
      call.count = 100;
      call.algorithm = algorithm;
      ExpectNotTakenForOne(setup, call, shift);
    }
  }
}

}  // namespace
}  // namespace gradientflow::testing
