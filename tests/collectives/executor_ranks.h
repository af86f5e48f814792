#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/done.h"
#include "gradientflow/base/dtype.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/collectives/executor.h"
#include "kernels/kernels.h"
#include "tests/transports/thread_places.h"
#include "transports/arena.h"
#include "transports/fabric.h"
#include "transports/inproc/create.h"

// Ranks as threads, each with only an executor of its own.
namespace gradientflow::testing {

struct RanksSetup {
  int size = 1;
  bool memory = true;      // Ranks of a host share it.
  int ranks_per_host = 0;  // 0: all on one.
  bool same_dtypes = true;
  std::size_t segment_bytes = 4096;
  int segments_in_flight = 3;
  std::size_t early_bytes = FabricOptions().early_bytes;
  bool places = false;     // Ranks have places for each other.
  std::uint64_t seed = 1;  // By which the network of the places delivers.
  const kernels::CpuKernelTable* kernels = &kernels::CpuKernels();
};
std::string Describe(const RanksSetup& setup);
// Ranks that share no memory, and place messages instead.
RanksSetup PlacingRanks(int size, std::uint64_t seed = 1);

// One of the ranks; used on its own thread.
class TestRank {
 public:
  // `network` is null if the ranks have no places.
  TestRank(const RanksSetup& setup, int rank,
           std::shared_ptr<InprocGroup> group,
           std::shared_ptr<PlacesNetwork> network);
  TestRank(const TestRank&) = delete;
  TestRank& operator=(const TestRank&) = delete;

  int rank() const { return group_.rank; }
  int size() const { return group_.size; }
  const CallGroup& group() const { return group_; }
  SharedArena* arena() const { return arena_.get(); }  // Null: no memory.
  // Null: no places.
  ThreadPlaces* places() const {
    return network_ == nullptr ? nullptr : &network_->places(rank());
  }
  PlacesNetwork& network() { return *network_; }
  Fabric& fabric() { return *fabric_; }
  Executor& executor() { return *executor_; }
  bool Poll() { return PollTogether(*executor_, *fabric_); }

  // Polls `front`, if it is not null, and the executor until `done`.
  void Drive(Collective* front, const std::function<bool()>& done);
  void Drive(const std::function<bool()>& done) { Drive(nullptr, done); }
  // Says good-bye and closes; only rank() and size() may be used after that.
  void Depart();
  bool departed() const { return fabric_ == nullptr; }

 private:
  const SteadyClock clock_;
  const std::shared_ptr<InprocGroup> inproc_;
  const std::shared_ptr<PlacesNetwork> network_;
  CallGroup group_;
  std::unique_ptr<SharedArena> arena_;
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<PlacedLinkEvents> link_events_;
  std::unique_ptr<Executor> executor_;
};

// Runs `body` on all ranks at once; no rank is destroyed before all have ended.
void OnRanks(const RanksSetup& setup,
             const std::function<void(TestRank&)>& body);

// How a call ended.
struct Ending {
  int times = 0;
  bool nonfinite = false;
  Status status;

  bool over() const { return times > 0; }
  Done done() { return {&Ending::OnDone, this, 0}; }
  static void OnDone(void* self, std::uint64_t, std::uint32_t flags,
                     const Status& status);
};

// The algorithms that this setup can run, and null for "auto".
std::vector<const CollectiveAlgorithm*> AlgorithmsFor(const RanksSetup& setup);

// `values` in memory as `dtype`, rounded once; and back.
std::vector<std::byte> Encode(DType dtype, const std::vector<float>& values);
std::vector<float> Decode(DType dtype, const std::byte* data,
                          std::size_t count);

// Rank `rank`'s contribution: values of about 1, with signs; never only zeros.
std::vector<float> Contribution(int rank, std::size_t count,
                                std::uint64_t seed);

// The exact reduction in float64, and the sum of the magnitudes.
struct Exact {
  double value = 0;
  double magnitude = 0;
};
std::vector<Exact> ExactSum(int size, std::size_t count, std::uint64_t seed,
                            double factor);

// Significant bits of a float type, including the hidden one.
int Precision(DType dtype);

// Whether `seen` is `exact` within `ulps` units in the last place of a type
// with `precision` bits.
::testing::AssertionResult Near(const std::vector<float>& seen,
                                const std::vector<Exact>& exact, int precision,
                                double ulps);

}  // namespace gradientflow::testing
