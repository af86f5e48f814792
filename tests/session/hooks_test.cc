#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "gradientflow/communicator/core.h"
#include "gradientflow/observe/null_recorder.h"
#include "gradientflow/observe/stderr_logger.h"
#include "tests/session/steps.h"
#include "transports/fabric.h"
#include "transports/poller.h"

// FinishStep() while other threads are inside GradientReady().
namespace gradientflow::testing {
namespace {

// Stops a thread inside the hook, where it reads the time.
class StoppingClock final : public Clock {
 public:
  // The calling thread stops at its next Now(), until Release().
  static void StopHere() { stops_here = true; }
  // Releases the threads once the calling thread has called Now() so many
  // times.
  static void ReleaseAfter(int calls) { calls_left = calls; }

  Time Now() const override {
    if (std::exchange(stops_here, false)) {
      std::unique_lock<std::mutex> lock(mutex_);
      stopped_ = true;
      changed_.notify_all();
      changed_.wait(lock, [this] { return released_; });
    } else if (calls_left > 0 && --calls_left == 0) {
      Release();
    }
    return time_.Now();
  }
  void AwaitStopped() const {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return stopped_; });
  }
  // Returns whether the thread had been released already.
  bool Release() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    changed_.notify_all();
    return std::exchange(released_, true);
  }

 private:
  static thread_local bool stops_here;
  static thread_local int calls_left;
  SteadyClock time_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable bool stopped_ = false;
  mutable bool released_ = false;
};
thread_local bool StoppingClock::stops_here = false;
thread_local int StoppingClock::calls_left = 0;

// A job of one rank, with its clock.
std::unique_ptr<GradientSession> OpenAlone(std::unique_ptr<Clock> clock,
                                           Options options) {
  static const SteadyClock time;
  Transport transport;
  transport.fabric = std::make_unique<Fabric>(
      0, 1, time, std::move(Poller::Create()).value(), FabricOptions{});
  std::vector<std::unique_ptr<Link>> none(1);
  transport.fabric->Connect(std::move(none));
  transport.group.topology.host = {0};
  CommunicatorCore::Args parts;
  options.rank = 0;
  options.size = 1;
  parts.options = options;
  parts.clock = std::move(clock);
  parts.logger = std::make_unique<StderrLogger>(LogLevel::kError, 0);
  parts.recorder = std::make_unique<NullRecorder>();
  auto core = CommunicatorCore::Create(std::move(parts), std::move(transport));
  EXPECT_TRUE(core.ok()) << core.status().ToString();
  auto session = GradientSession::Open(
      std::make_shared<Communicator>(std::move(core).value()), SomeTensors(),
      options);
  EXPECT_TRUE(session.ok()) << session.status().ToString();
  return std::move(session).value();
}

TEST(Hooks, AreAwaitedByTheStepTheyAreIn) {
  for (const bool overlap : {true, false}) {
    for (const bool absent : {true, false}) {
      auto owned = std::make_unique<StoppingClock>();
      const StoppingClock& clock = *owned;
      Options options = Job::TestOptions();
      options.overlap = overlap;
      // A thread that waits reads the clock all the time.
      options.spin_microseconds = 1'000'000;
      const auto session = OpenAlone(std::move(owned), options);
      for (std::size_t i = session->tensors(); i-- > 1;) {
        Produce(*session, i, 0);
      }
      Fill(*session, 0, 0);
      std::thread hook([&] {
        StoppingClock::StopHere();
        if (absent) {
          session->GradientAbsent(0);
        } else {
          session->GradientReady(0);
        }
      });
      clock.AwaitStopped();
      StoppingClock::ReleaseAfter(10'000);
      const Result<StepStats> stats = session->FinishStep();
      EXPECT_TRUE(clock.Release()) << "a hook was still in this step";
      hook.join();
      ASSERT_TRUE(stats.ok()) << stats.status().ToString();
      // The following steps are not affected.
      for (int step = 1; step < 4; ++step) {
        ProduceAll(*session, step);
        FinishAndCheck(*session, step);
      }
    }
  }
}

// A caller to which FinishStep() reports a missing tensor tries again.
TEST(Hooks, MayBeInsideWhenFinishStepIsTried) {
  Job job;
  job.size = 2;
  job.tensors = SomeTensors();
  job.options.bucket_bytes = 0;
  for (const Over over : {Over::kMemory, Over::kDevices}) {
    job.over = over;
    RunRanks(job, [](GradientSession& session) {
      for (int step = 0; step < 60; ++step) {
        std::vector<std::thread> hooks;
        for (std::size_t t = 0; t < 2; ++t) {
          hooks.emplace_back([&, t] {
            for (std::size_t i = session.tensors(); i-- > 0;) {
              if (i % 2 == t) Produce(session, i, step);
            }
          });
        }
        Status status;
        do {
          status = session.FinishStep().status();
        } while (status.code() == StatusCode::kFailedPrecondition);
        for (std::thread& hook : hooks) hook.join();
        ASSERT_TRUE(status.ok()) << status.ToString();
        for (const std::size_t i : AllTensors(session)) {
          ExpectMean(session, i, step, [](int) { return true; });
        }
      }
    });
  }
}

}  // namespace
}  // namespace gradientflow::testing
