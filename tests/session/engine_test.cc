#include "gradientflow/session/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/observe/null_recorder.h"
#include "tests/collectives/manual_collective.h"
#include "tests/communicator/fabrics.h"

// What hooks do, and what the aggregator hears of it.
namespace gradientflow::testing {
namespace {

using std::chrono::milliseconds;

// Keeps what it is told; ends its step when the test says so.
class ToldAggregator final : public Aggregator {
 public:
  void Begin(std::uint64_t step, float) override {
    begun = step;
    written_end = 0;
    done = false;
  }
  void Advance(std::size_t end) override {
    EXPECT_GE(end, written_end);
    written_end = end;
  }
  bool Work() override { return false; }
  bool HasWork() const override { return false; }
  bool Done() const override { return done; }
  const AggregateResult& result() const override { return result_; }
  std::span<const Extent> exchanged() const override { return {}; }
  std::span<const std::uint8_t> selection() const override { return {}; }
  void SetBucketBytes(std::size_t) override {}
  Status ZeroSent() override { return Status(); }
  Result<std::span<const float>> residual() override {
    return std::span<const float>();
  }
  std::size_t residual_bytes() const override { return 0; }
  std::span<const std::uint8_t> next_selection() const override { return {}; }
  Status CheckState(std::uint64_t, std::span<const std::byte>,
                    std::span<const std::byte>) const override {
    return Status();
  }
  Status Restore(std::uint64_t, float, std::span<const std::byte>,
                 std::span<const std::byte>) override {
    return Status();
  }

  std::uint64_t begun = 99;
  std::size_t written_end = 0;
  bool done = false;

 private:
  AggregateResult result_;
};

// Counts what it is told, and fails when the test says so.
class CountingHandover final : public Handover {
 public:
  Status Written(std::size_t) override {
    ++written;
    return answer_to_written;
  }
  void NextStep() override { written = 0; }
  bool reads_tensors() const override { return false; }
  Status Follow(const Event&) override { return Status(); }

  std::size_t written = 0;
  Status answer_to_written;
};

class EngineTest : public ::testing::Test {
 protected:
  // A hook that has nothing to write. Returns whether the driver has to look.
  bool Ready(std::size_t i) {
    return !engine_->Claim(i) || engine_->Publish(i);
  }
  void Make(const std::vector<std::size_t>& sizes, bool overlap = true) {
    layout_ = PoolLayout::Create(sizes, /*align_elements=*/32).value();
    names_.clear();
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      names_.push_back("weight" + std::to_string(i));
    }
    EngineArgs parts;
    parts.layout = &layout_;
    parts.names = &names_;
    parts.fabric = &ranks_.fabric(0);
    parts.driver = &driver_;
    parts.handover = handover_;
    parts.collective = &collective_;
    parts.aggregator = &aggregator_;
    parts.clock = &ranks_.clock();
    parts.recorder = &recorder_;
    parts.before_buckets = [this] { ++before_buckets_; };
    parts.while_in_step = [] {};
    engine_ = std::make_unique<Engine>(parts, overlap);
    engine_->Begin(step_, 1.0F);
  }
  std::vector<std::size_t> RandomSizes() {
    std::vector<std::size_t> sizes(1 + random_() % 20);
    for (std::size_t& size : sizes) {
      // Some are empty, some larger than a section.
      size = random_() % 5 == 0 ? 0 : random_() % 200'000;
    }
    sizes.back() = 5;  // The first of the pool.
    return sizes;
  }
  std::vector<std::size_t> AnyOrder() {
    std::vector<std::size_t> order(layout_.tensors());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    return order;
  }
  // How far the pool is written without a gap.
  std::size_t Prefix(const std::vector<bool>& written) const {
    std::size_t end = 0;
    for (const std::size_t i : layout_.order()) {
      if (!written[i]) break;
      end = layout_.written_end(i);
    }
    return end;
  }
  static DriverArgs PartsOf(Fabrics& ranks, Messages& messages) {
    DriverArgs parts;
    parts.fabric = &ranks.fabric(0);
    parts.executor = &ranks.executor(0);
    parts.outer = parts.executor;
    parts.messages = &messages;
    parts.clock = &ranks.clock();
    return parts;
  }

  std::mt19937_64 random_{19020685};
  Fabrics ranks_{1};
  Messages messages_{ranks_.fabric(0)};
  Driver driver_{PartsOf(ranks_, messages_), WatchdogOptions()};
  HostHandover at_once_;
  Handover* handover_ = &at_once_;
  ManualCollective collective_;
  ToldAggregator aggregator_;
  NullRecorder recorder_;
  PoolLayout layout_;
  std::vector<std::string> names_;
  std::uint64_t step_ = 3;
  int before_buckets_ = 0;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, TellsTheAggregatorOfThePrefixThatIsWritten) {
  for (int round = 0; round < 50; ++round) {
    Make(RandomSizes());
    EXPECT_EQ(aggregator_.begun, step_);
    before_buckets_ = 0;
    std::vector<bool> written(layout_.tensors());
    for (const std::size_t i : AnyOrder()) {
      Ready(i);
      written[i] = true;
      engine_->Poll();
      ASSERT_EQ(aggregator_.written_end, Prefix(written)) << "round " << round;
      ASSERT_EQ(before_buckets_, aggregator_.written_end > 0 ? 1 : 0);
    }
    EXPECT_EQ(aggregator_.written_end, layout_.elements());
  }
}

// The driving thread is woken once per section of the pool: by its last tensor.
TEST_F(EngineTest, WakesTheDriverOncePerSection) {
  for (int round = 0; round < 50; ++round) {
    Make(RandomSizes());
    std::size_t woken = 0;
    for (const std::size_t i : AnyOrder()) woken += Ready(i) ? 1 : 0;
    EXPECT_EQ(woken, Engine::SectionEndsOf(layout_).size());
  }
}

// As on a device: what is told is a prefix of whole sections, each of which was
// handed over.
TEST_F(EngineTest, ASectionIsToldOnceItIsHandedOver) {
  for (int round = 0; round < 50; ++round) {
    CountingHandover handover;
    handover_ = &handover;
    Make(RandomSizes());
    std::vector<bool> written(layout_.tensors());
    for (const std::size_t i : AnyOrder()) {
      const std::size_t before = handover.written;
      const bool last_of_section = Ready(i);
      EXPECT_EQ(handover.written, before + (last_of_section ? 1 : 0));
      written[i] = true;
      engine_->Poll();
      EXPECT_LE(aggregator_.written_end, Prefix(written));
      const std::vector<std::size_t> ends = Engine::SectionEndsOf(layout_);
      EXPECT_TRUE(aggregator_.written_end == 0 ||
                  std::ranges::count(ends, aggregator_.written_end) > 0);
    }
    EXPECT_EQ(handover.written, Engine::SectionEndsOf(layout_).size());
    EXPECT_EQ(aggregator_.written_end, layout_.elements());
  }
}

TEST_F(EngineTest, AHandoverThatFailsEndsTheJob) {
  CountingHandover handover;
  handover_ = &handover;
  handover.answer_to_written = Status(StatusCode::kUnavailable, "no event");
  Make({4});
  EXPECT_TRUE(Ready(0)) << "the driving thread has to look";
  engine_->Poll();
  EXPECT_EQ(aggregator_.written_end, 0U);
  EXPECT_NE(ranks_.fabric(0).status().message().find("no event"),
            std::string::npos);
}

TEST_F(EngineTest, WithoutOverlapSendsOnceBackwardIsOver) {
  Make({7, 5, 3}, /*overlap=*/false);
  for (const std::size_t i : AnyOrder()) {
    EXPECT_FALSE(Ready(i)) << "nobody waits yet";
    engine_->Poll();
  }
  EXPECT_EQ(aggregator_.written_end, 0U);
  ASSERT_TRUE(engine_->EndBackward().ok());
  engine_->Poll();
  EXPECT_EQ(aggregator_.written_end, layout_.elements());
}

TEST_F(EngineTest, NamesTheTensorsThatAreMissing) {
  Make({1, 1, 1, 1, 1, 1, 1});
  Ready(4);
  const Status missing = engine_->EndBackward();
  EXPECT_EQ(missing.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(missing.message().find("step 3: 6 of 7 tensors"), std::string::npos)
      << missing.message();
  EXPECT_NE(missing.message().find("weight6, weight5, weight3, weight2 and 2 "
                                   "more"),
            std::string::npos)
      << missing.message();
  EXPECT_TRUE(ranks_.fabric(0).status().ok());
  for (const std::size_t i : {0, 1, 2, 3, 5, 6}) Ready(i);
  EXPECT_TRUE(engine_->EndBackward().ok());
}

TEST_F(EngineTest, SecondMarkEndsTheJobAndSendsNothing) {
  Make({4, 4});
  Ready(1);
  EXPECT_TRUE(Ready(1)) << "the driving thread has to look";
  Ready(0);
  engine_->Poll();
  const Status& job = ranks_.fabric(0).status();
  EXPECT_EQ(job.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(job.message().find("weight1"), std::string::npos) << job.message();
  EXPECT_NE(job.message().find("twice"), std::string::npos) << job.message();
  EXPECT_EQ(aggregator_.written_end, 0U);
}

TEST_F(EngineTest, MarkOfATensorThatIsNotThereEndsTheJob) {
  Make({4, 4});
  EXPECT_FALSE(engine_->Claim(2));
  engine_->Poll();
  EXPECT_EQ(ranks_.fabric(0).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(EngineTest, StepIsNotDoneWhileAHookIsInIt) {
  Make({4, 4});
  Ready(1);
  EXPECT_TRUE(engine_->Claim(0));
  EXPECT_TRUE(engine_->EndBackward().ok()) << "it is claimed, not missing";
  aggregator_.done = true;
  EXPECT_FALSE(engine_->StepDone());
  engine_->Publish(0);
  EXPECT_TRUE(engine_->StepDone());
}

TEST_F(EngineTest, StepIsDoneWhenAllIsAggregatedOrTheJobHasFailed) {
  Make({4});
  EXPECT_TRUE(engine_->untouched());
  Ready(0);
  EXPECT_FALSE(engine_->untouched());
  ASSERT_TRUE(engine_->EndBackward().ok());
  EXPECT_FALSE(engine_->StepDone());
  EXPECT_TRUE(engine_->Pending());
  ranks_.fabric(0).Fail(Status(StatusCode::kAborted, "enough"));
  EXPECT_TRUE(engine_->StepDone());
}

TEST_F(EngineTest, MeasuresBackwardAndWhatOfTheCommunicationItHides) {
  Make({4, 4});
  ranks_.clock().Advance(milliseconds(100));
  Ready(1);
  collective_.Start({}, {});  // The bucket that the aggregator would start.
  engine_->Poll();
  ranks_.clock().Advance(milliseconds(30));
  Ready(0);
  ASSERT_TRUE(engine_->EndBackward().ok());
  ranks_.clock().Advance(milliseconds(20));
  collective_.End(0);
  engine_->Poll();
  const EngineTimes times = engine_->End();
  EXPECT_NEAR(times.backward_seconds, 0.030, 1e-9);
  EXPECT_NEAR(times.exposed_seconds, 0.020, 1e-9);
  EXPECT_NEAR(times.hidden_seconds, 0.030, 1e-9);
}

TEST_F(EngineTest, StartsEachStepAfresh) {
  Make({4, 4, 4});
  for (int round = 0; round < 3; ++round) {
    for (const std::size_t i : AnyOrder()) Ready(i);
    engine_->Poll();
    EXPECT_EQ(aggregator_.written_end, layout_.elements());
    ASSERT_TRUE(engine_->EndBackward().ok());
    aggregator_.done = true;
    ASSERT_TRUE(engine_->StepDone());
    engine_->End();
    engine_->Begin(++step_, 1.0F);
    EXPECT_EQ(aggregator_.begun, step_);
    EXPECT_TRUE(engine_->untouched());
  }
}

}  // namespace
}  // namespace gradientflow::testing
