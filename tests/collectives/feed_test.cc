#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/base/workers.h"
#include "tests/collectives/executor_ranks.h"
#include "tests/transports/thread_places.h"

// Allreduces whose buffer fills while they run, and whose results are taken
// from it part by part.
namespace gradientflow::testing {
namespace {

using Algorithm = const CollectiveAlgorithm*;

// Provides a few more `values` each time it is polled, and takes finished ones
// away: a reader that is too early or too late reads garbage.
class Trickle final : public Feed {
 public:
  Trickle(DType dtype, std::vector<std::byte> values, std::byte* memory,
          std::uint64_t seed)
      : size_(SizeOf(dtype)),
        values_(std::move(values)),
        memory_(memory),
        random_(seed),
        taken_(values_.size() / size_) {
    std::memset(memory_, kGarbage, values_.size());
  }

  std::size_t available() const override { return brought_; }

  void Finished(std::size_t begin, std::size_t count) override {
    EXPECT_FALSE(over_);
    ASSERT_LE(begin + count, brought_);
    for (std::size_t i = begin; i < begin + count; ++i) {
      EXPECT_FALSE(taken_[i]) << "element " << i << " finished twice";
      taken_[i] = true;
    }
    std::memcpy(values_.data() + begin * size_, memory_ + begin * size_,
                count * size_);
    std::memset(memory_ + begin * size_, kGarbage, count * size_);
  }

  void Bring(std::size_t most) {
    const std::size_t more =
        std::min(taken_.size() - brought_, random_() % (most + 1));
    std::memcpy(memory_ + brought_ * size_, values_.data() + brought_ * size_,
                more * size_);
    brought_ += more;
  }
  void Close() { over_ = true; }
  bool AllTaken() const {
    return std::all_of(taken_.begin(), taken_.end(), [](bool b) { return b; });
  }
  const std::vector<std::byte>& result() const { return values_; }

 private:
  static constexpr int kGarbage = 0x5A;
  const std::size_t size_;
  std::vector<std::byte> values_;
  std::byte* const memory_;
  std::mt19937_64 random_;
  std::size_t brought_ = 0;
  std::vector<bool> taken_;
  bool over_ = false;
};

CollectiveCall CallOf(DType dtype, DType wire, std::size_t count,
                      Algorithm algorithm, void* memory) {
  CollectiveCall call;
  call.output = memory;
  call.count = count;
  call.dtype = dtype;
  call.wire = wire;
  call.op = ReduceOp::kMean;
  call.scale = 0.5F;
  call.algorithm = algorithm;
  call.channel = Channel::kGradients;
  return call;
}

// Memory of a call: on even ranks in the arena, or where the network reaches
// it, so that both paths run.
class Memory {
 public:
  Memory(TestRank& rank, std::size_t bytes) : arena_(rank.arena()) {
    if (arena_ == nullptr || rank.rank() % 2 != 0) {
      own_.resize(bytes + 1);
      if (rank.places() == nullptr || rank.rank() % 2 != 0) return;
      places_ = rank.places();
      places_->Register(own_.data(), own_.size());
      return;
    }
    Result<BufferView> view = arena_->Allocate(bytes);
    EXPECT_TRUE(view.ok());
    view_ = view.value();
  }
  ~Memory() {
    if (view_.data != nullptr) arena_->Free(view_);
    if (places_ != nullptr) places_->Deregister(own_.data());
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* data() { return view_.data != nullptr ? view_.data : own_.data(); }

 private:
  SharedArena* const arena_;
  BufferView view_;
  std::vector<std::byte> own_;
  ThreadPlaces* places_ = nullptr;
};

struct Types {
  DType dtype;
  DType wire;
};
constexpr Types kTypes[] = {{DType::kFloat32, DType::kFloat32},
                            {DType::kFloat32, DType::kFloat16},
                            {DType::kBFloat16, DType::kBFloat16}};
constexpr std::size_t kCounts[] = {1, 97, 4099, 9001};

void RunFed(TestRank& rank, const RanksSetup& setup, Types types,
            std::size_t count, Algorithm algorithm) {
  const std::string what = StrCat(Describe(setup), ", ", Name(algorithm), ", ",
                                  count, " ", Name(types.dtype));
  std::vector<std::byte> plain =
      Encode(types.dtype, Contribution(rank.rank(), count, 100 + count));
  Memory memory(rank, plain.size());
  Trickle feed(types.dtype, plain, memory.data(),
               static_cast<std::uint64_t>(7 * rank.rank() + 1));
  CollectiveCall call =
      CallOf(types.dtype, types.wire, count, algorithm, memory.data());
  call.feed = &feed;
  Ending fed;
  rank.executor().Start(call, fed.done());
  rank.Drive([&] {
    feed.Bring(1500);
    return fed.over();
  });
  feed.Close();
  EXPECT_TRUE(fed.status.ok()) << what << ": " << fed.status.ToString();
  EXPECT_TRUE(feed.AllTaken()) << what;

  std::memcpy(memory.data(), plain.data(), plain.size());
  call.feed = nullptr;
  Ending whole;
  rank.executor().Start(call, whole.done());
  rank.Drive([&] { return whole.over(); });
  EXPECT_EQ(std::memcmp(feed.result().data(), memory.data(), plain.size()), 0)
      << what;
  const std::vector<float> seen =
      Decode(types.dtype, feed.result().data(), count);
  const int precision = std::min(Precision(types.dtype), Precision(types.wire));
  EXPECT_TRUE(Near(seen,
                   ExactSum(setup.size, count, 100 + count, 0.5 / setup.size),
                   precision, 3 + setup.size))
      << what;
}

TEST(Feed, GivesWhatAWholeBufferGives) {
  for (int size : {1, 2, 3, 5}) {
    for (bool memory : {true, false}) {
      for (int per_host : {0, 2}) {
        RanksSetup setup = {size, memory, per_host};
        setup.places = !memory;
        OnRanks(setup, [&](TestRank& rank) {
          for (Algorithm algorithm : AlgorithmsFor(setup)) {
            for (const Types& types : kTypes) {
              for (std::size_t count : kCounts) {
                RunFed(rank, setup, types, count, algorithm);
                if (::testing::Test::HasFailure()) return;
              }
            }
          }
        });
        if (HasFailure()) return;
      }
    }
  }
}

TEST(Feed, FollowsExtents) {
  const RanksSetup setup = {3, true};
  OnRanks(setup, [&](TestRank& rank) {
    // Finished() counts packed elements, so this feed keeps the memory.
    class Half final : public Feed {
     public:
      std::size_t available() const override { return here; }
      void Finished(std::size_t begin, std::size_t count) override {
        EXPECT_LE(begin + count, here);
        finished += count;
      }
      std::size_t here = 0;
      std::size_t finished = 0;
    };
    const std::vector<float> values = Contribution(rank.rank(), 5000, 3);
    std::vector<float> pool = values;
    CollectiveCall call = CallOf(DType::kFloat32, DType::kFloat32, 4100,
                                 &allreduce::kTwoSync, pool.data());
    call.extents = {{10, 100}, {500, 4000}};
    Half feed;
    call.feed = &feed;
    Ending ending;
    rank.executor().Start(call, ending.done());
    rank.Drive([&] {
      feed.here = std::min<std::size_t>(4100, feed.here + 13);
      return ending.over();
    });
    ASSERT_TRUE(ending.status.ok()) << ending.status.ToString();
    EXPECT_EQ(feed.finished, 4100);
    const std::vector<Exact> exact = ExactSum(3, 5000, 3, 0.5 / 3);
    for (std::size_t i = 0; i < 5000; ++i) {
      const bool sent = (i >= 10 && i < 110) || (i >= 500 && i < 4500);
      ASSERT_NEAR(pool[i], sent ? exact[i].value : values[i], 1e-5) << i;
    }
  });
}

TEST(Feed, HoldsUpItsChannelOnly) {
  OnRanks({2, false}, [&](TestRank& rank) {
    std::vector<float> a = Contribution(rank.rank(), 3000, 1);
    std::vector<float> b = Contribution(rank.rank(), 500, 2);
    std::vector<float> c = Contribution(rank.rank(), 700, 3);
    Trickle feed(DType::kFloat32, Encode(DType::kFloat32, a),
                 reinterpret_cast<std::byte*>(a.data()), 9);
    CollectiveCall fed = CallOf(DType::kFloat32, DType::kFloat32, 3000,
                                &allreduce::kRing, a.data());
    fed.feed = &feed;
    CollectiveCall behind = CallOf(DType::kFloat32, DType::kFloat32, 500,
                                   &allreduce::kRing, b.data());
    CollectiveCall beside = CallOf(DType::kFloat32, DType::kFloat32, 700,
                                   &allreduce::kRing, c.data());
    beside.channel = Channel::kPlain;
    Ending fed_end;
    Ending behind_end;
    Ending beside_end;
    rank.executor().Start(fed, fed_end.done());
    rank.executor().Start(behind, behind_end.done());
    rank.executor().Start(beside, beside_end.done());
    rank.Drive([&] { return beside_end.over(); });
    // The other rank may be ahead, but cannot finish without this one.
    EXPECT_FALSE(fed_end.over());
    EXPECT_FALSE(behind_end.over());
    EXPECT_EQ(rank.executor().in_flight(), 2);
    rank.Drive([&] {
      feed.Bring(300);
      return behind_end.over();
    });
    EXPECT_TRUE(fed_end.over());
    EXPECT_TRUE(fed_end.status.ok() && behind_end.status.ok() &&
                beside_end.status.ok());
  });
}

TEST(Feed, IsForAllreducesOfGradients) {
  OnRanks({1, false}, [&](TestRank& rank) {
    std::vector<double> memory(8);
    Trickle feed(DType::kFloat64, std::vector<std::byte>(64),
                 reinterpret_cast<std::byte*>(memory.data()), 1);
    for (DType dtype : {DType::kFloat64, DType::kInt32, DType::kInt8}) {
      CollectiveCall call = CallOf(dtype, dtype, 8, nullptr, memory.data());
      call.op = ReduceOp::kSum;
      call.scale = 1.0F;
      call.feed = &feed;
      EXPECT_EQ(ValidateCall(call, rank.group()).code(),
                StatusCode::kInvalidArgument);
      call.feed = nullptr;
      EXPECT_TRUE(ValidateCall(call, rank.group()).ok());
    }
    CollectiveCall call =
        CallOf(DType::kFloat32, DType::kFloat32, 8, nullptr, memory.data());
    call.feed = &feed;
    EXPECT_TRUE(ValidateCall(call, rank.group()).ok());
    call.kind = CollectiveKind::kBroadcast;
    const Status status = ValidateCall(call, rank.group());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("feed"), std::string::npos);
  });
}

TEST(Feed, IsLeftAloneAfterAFailure) {
  for (Algorithm algorithm :
       {&allreduce::kShared, &allreduce::kGdraa, &allreduce::kTwoSync}) {
    RanksSetup setup = {3, algorithm == &allreduce::kShared};
    setup.places = !setup.memory;
    OnRanks(setup, [&](TestRank& rank) {
      std::vector<float> a = Contribution(rank.rank(), 30000, 1);
      auto feed =
          std::make_unique<Trickle>(DType::kFloat32, Encode(DType::kFloat32, a),
                                    reinterpret_cast<std::byte*>(a.data()), 9);
      CollectiveCall call =
          CallOf(DType::kFloat32, DType::kFloat32, 30000, algorithm, a.data());
      call.feed = feed.get();
      Ending ending;
      rank.executor().Start(call, ending.done());
      std::size_t looks = 0;
      rank.Drive([&] {
        if (looks < 10) feed->Bring(1500);
        if (++looks == 40 && rank.rank() == 1) {
          rank.fabric().Fail(Status(StatusCode::kAborted, "enough"));
        }
        return ending.over();
      });
      EXPECT_EQ(ending.status.code(), StatusCode::kAborted)
          << ending.status.ToString();
      feed.reset();  // The sanitizers detect any later call to it.
      for (int i = 0; i < 20; ++i) rank.Poll();
      EXPECT_EQ(ending.times, 1);
      EXPECT_EQ(rank.executor().in_flight(), 0);
    });
  }
}

// A rank that is alone may divide its work among threads. Whatever their
// number, it tells of each part once and leaves the same bits.
TEST(Feed, OfARankThatIsAloneIsFinishedByAnyNumberOfThreads) {
  constexpr std::size_t kCount = 700001;
  const std::vector<float> values = Contribution(0, kCount, 3);
  std::vector<std::byte> first;
  for (const int threads : {0, 1, 2, 3}) {
    for (const bool spoilt : {false, true}) {
      OnRanks({1, false}, [&](TestRank& rank) {
        std::vector<float> memory = values;
        if (spoilt) memory[kCount - 5000] = 1e30F;  // Not in float16.
        auto* const data = reinterpret_cast<std::byte*>(memory.data());
        Trickle feed(DType::kFloat32, Encode(DType::kFloat32, memory), data, 4);
        while (feed.available() < kCount) feed.Bring(kCount);
        Workers workers(threads, std::chrono::nanoseconds(0));
        CollectiveCall call = CallOf(DType::kFloat32, DType::kFloat16, kCount,
                                     nullptr, memory.data());
        call.feed = &feed;
        call.workers = threads == 0 ? nullptr : &workers;
        Ending ending;
        rank.executor().Start(call, ending.done());
        rank.Drive([&] { return ending.over(); });
        EXPECT_TRUE(ending.status.ok()) << ending.status.ToString();
        EXPECT_EQ(ending.nonfinite, spoilt) << threads;
        EXPECT_TRUE(feed.AllTaken());
        if (spoilt) return;
        if (first.empty()) first = feed.result();
        EXPECT_EQ(feed.result(), first) << threads;
      });
    }
  }
}

}  // namespace
}  // namespace gradientflow::testing
