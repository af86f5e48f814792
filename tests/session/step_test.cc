#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/session/steps.h"

// Training steps on dense pools.
namespace gradientflow::testing {
namespace {

TEST_P(Steps, AverageWhateverTheOrderOfTheHooks) {
  const Job job = MakeJob();
  RunRanks(job, [](GradientSession& session) {
    std::mt19937 random(static_cast<unsigned>(session.rank()));
    for (int step = 0; step < 6; ++step) {
      std::vector<std::size_t> order = AllTensors(session);
      std::shuffle(order.begin(), order.end(), random);
      for (std::size_t i : order) Produce(session, i, step);
      FinishAndCheck(session, step);
    }
  });
}

TEST_P(Steps, TakeHooksFromSeveralThreads) {
  const Job job = MakeJob();
  RunRanks(job, [](GradientSession& session) {
    for (int step = 0; step < 4; ++step) {
      std::vector<std::thread> threads;
      for (std::size_t t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
          for (std::size_t i = session.tensors(); i-- > 0;) {
            if (i % 3 == t) Produce(session, i, step);
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      FinishAndCheck(session, step);
    }
  });
}

TEST_P(Steps, AgreeForEveryThetaWithAndWithoutOverlap) {
  const std::size_t thetas[] = {0, 1, std::size_t{64} << 10, kInfiniteBytes,
                                kAutoBytes};
  for (std::size_t theta : thetas) {
    for (bool overlap : {true, false}) {
      Job job = MakeJob();
      job.options.bucket_bytes = theta;
      job.options.overlap = overlap;
      std::atomic<std::uint64_t> buckets{0};
      RunRanks(job, [&](GradientSession& session) {
        for (int step = 0; step < 6; ++step) {
          ProduceAll(session, step);
          buckets = FinishAndCheck(session, step).buckets;
        }
      });
      const std::size_t filled = job.tensors.size() - 1;  // One is empty.
      if (theta <= 1) {
        EXPECT_EQ(buckets.load(), filled);
      } else if (theta == kInfiniteBytes) {
        EXPECT_EQ(buckets.load(), 1U);
      }
    }
  }
}

TEST_P(Steps, CountAbsentTensorsAsZeros) {
  const Job job = MakeJob();
  RunRanks(job, [](GradientSession& session) {
    for (int step = 0; step < 4; ++step) {
      for (std::size_t i = session.tensors(); i-- > 0;) {
        if (i % 2 == 1 && session.rank() == 1) {
          session.GradientAbsent(i);
        } else {
          Produce(session, i, step);
        }
      }
      ASSERT_TRUE(session.FinishStep().ok());
      for (std::size_t i = 0; i < session.tensors(); ++i) {
        ExpectMean(session, i, step,
                   [&](int rank) { return i % 2 == 0 || rank != 1; });
      }
    }
  });
}

TEST_P(Steps, GoOnAfterAMissingTensorWasNamed) {
  const Job job = MakeJob();
  RunRanks(job, [](GradientSession& session) {
    for (int step = 0; step < 3; ++step) {
      for (std::size_t i = 1; i < session.tensors(); ++i) {
        Produce(session, i, step);
      }
      const Result<StepStats> early = session.FinishStep();
      ASSERT_FALSE(early.ok());
      EXPECT_EQ(early.status().code(), StatusCode::kFailedPrecondition);
      EXPECT_NE(early.status().message().find("weight0"), std::string::npos)
          << early.status().message();
      Produce(session, 0, step);
      FinishAndCheck(session, step);
    }
  });
}

TEST_P(Steps, EndOnAllRanksWhenATensorIsMarkedTwice) {
  const Job job = MakeJob();
  RunRanks(job, [](GradientSession& session) {
    // Peers may be one step behind or ahead when they learn of the failure.
    Result<StepStats> finished = StepStats();
    for (int step = 0; finished.ok() && step < 4; ++step) {
      ProduceAll(session, step);
      const bool last = session.rank() == session.size() - 1;
      if (step == 1 && last) session.GradientReady(2);
      finished = session.FinishStep();
    }
    ASSERT_FALSE(finished.ok());
    const std::string& text = finished.status().message();
    EXPECT_NE(text.find("weight2"), std::string::npos) << text;
    EXPECT_NE(text.find("twice"), std::string::npos) << text;
    EXPECT_FALSE(session.FinishStep().ok());
  });
}

TEST_P(Steps, DivideByTheLossScale) {
  Job job = MakeJob();
  job.options.loss_scale = 4.0F;
  RunRanks(job, [](GradientSession& session) {
    float scale = 4.0F;
    for (int step = 0; step < 4; ++step) {
      ProduceAll(session, step, scale);
      FinishAndCheck(session, step);
      scale *= 2;
      EXPECT_TRUE(session.SetLossScale(scale).ok());
    }
  });
}

TEST_P(Steps, SumWhenAsked) {
  Job job = MakeJob();
  job.options.reduce = ReduceOp::kSum;
  RunRanks(job, [](GradientSession& session) {
    ProduceAll(session, 0, 1.0F / static_cast<float>(session.size()));
    FinishAndCheck(session, 0, /*tolerance=*/1e-6);
  });
}

// "auto", and the algorithms that any ranks can run. NCCL has its own.
std::vector<const char*> AlgorithmsByMessages(Over over) {
  std::vector<const char*> names = {Name(nullptr)};
  if (over == Over::kNccl) return names;
  for (const CollectiveAlgorithm* algorithm : allreduce::kTable) {
    if (RunnableAlgorithm(algorithm, 8, /*all_share=*/false) == algorithm) {
      names.push_back(algorithm->name);
    }
  }
  return names;
}

TEST_P(Steps, ReportANonfiniteGradientOnEveryRankInTheSameStep) {
  for (const char* algorithm :
       AlgorithmsByMessages(std::get<Over>(GetParam()))) {
    for (DType wire : {DType::kFloat32, DType::kFloat16}) {
      Job job = MakeJob();
      job.options.wire_dtype = wire;
      job.options.algorithm = algorithm;
      RunRanks(job, [&](GradientSession& session) {
        for (int step = 0; step < 5; ++step) {
          constexpr float kBad[] = {std::numeric_limits<float>::infinity(),
                                    std::numeric_limits<float>::quiet_NaN(), 0};
          const bool bad = step % 2 == 1;
          const float value = kBad[step / 2];
          const bool spoils = session.rank() == step % session.size() && bad;
          for (std::size_t i = session.tensors(); i-- > 0;) {
            Fill(session, i, step);
            if (i == 3 && spoils) Floats(session, i).back() = value;
            session.GradientReady(i);
          }
          Result<StepStats> stats = session.FinishStep();
          ASSERT_TRUE(stats.ok()) << stats.status().ToString();
          EXPECT_EQ(stats.value().nonfinite, bad)
              << algorithm << " as " << Name(wire) << " step " << step
              << " rank " << session.rank();
        }
      });
    }
  }
}

TEST_P(Steps, ReportAnOverflowOnTheWireOnEveryRank) {
  for (const char* algorithm :
       AlgorithmsByMessages(std::get<Over>(GetParam()))) {
    Job job = MakeJob();
    job.options.wire_dtype = DType::kFloat16;
    job.options.algorithm = algorithm;
    RunRanks(job, [&](GradientSession& session) {
      for (int step = 0; step < 4; ++step) {
        for (std::size_t i = session.tensors(); i-- > 0;) {
          Fill(session, i, step);
          if (i == 3 && step % 2 == 1) Floats(session, i).front() = 1e7F;
          session.GradientReady(i);
        }
        Result<StepStats> stats = session.FinishStep();
        ASSERT_TRUE(stats.ok()) << stats.status().ToString();
        const bool on_wire = session.options().fabric == "tcp";
        if (step % 2 == 0) {
          EXPECT_FALSE(stats.value().nonfinite);
        } else if (on_wire) {
          EXPECT_TRUE(stats.value().nonfinite) << algorithm;
        }
      }
    });
  }
}

TEST_P(Steps, CountTheBytesBetweenRanks) {
  Job job = MakeJob();
  const bool memory = std::get<0>(GetParam()) == Over::kMemory ||
                      std::get<0>(GetParam()) == Over::kDevices;
  job.options.algorithm = memory ? "shared" : "ring";
  job.options.bucket_bytes = kInfiniteBytes;
  std::atomic<std::uint64_t> sent{0};
  std::atomic<std::uint64_t> pool{0};
  RunRanks(job, [&](GradientSession& session) {
    ProduceAll(session, 0);
    sent += FinishAndCheck(session, 0).bytes_sent;
    if (session.rank() > 0) return;
    pool = session.pool().bytes;  // One bucket, so padding is sent.
  });
  EXPECT_EQ(sent.load(), 2 * (job.size - 1) * pool.load());
}

TEST_P(Steps, CountTheirOwnTrafficOnly) {
  Job job = MakeJob();
  // Gradients are sent in FinishStep() only.
  job.options.overlap = false;
  // What is staged goes on under the backward that was only submitted before.
  const bool staged =
      job.over == Over::kDevices || job.over == Over::kSomeDevices;
  RunRanks(job, [staged](GradientSession& session) {
    std::uint64_t alone = 0;
    for (int step = 0; step < 3; ++step) {
      std::vector<float> data(30'011, 1.0F);
      CollectiveCall call;
      call.output = data.data();
      call.count = data.size();
      std::uint64_t ticket = 0;
      if (step > 0) {
        ASSERT_TRUE(session.communicator().Run(call).ok());
        ticket = session.communicator().Start(call).value();
      }
      for (std::size_t i = session.tensors(); i-- > 0;) {
        Produce(session, i, step);
        if (i == 5 && step > 1) {
          ASSERT_TRUE(session.communicator().Wait(ticket).ok());
        }
      }
      const StepStats stats = FinishAndCheck(session, step);
      if (step == 0) alone = stats.bytes_sent;
      EXPECT_EQ(stats.bytes_sent, alone);
      if (!staged) {
        EXPECT_EQ(stats.hidden_seconds, 0);
      }
      if (step == 1) {
        ASSERT_TRUE(session.communicator().Wait(ticket).ok());
      }
    }
  });
}

GF_INSTANTIATE_STEPS(Steps);

}  // namespace
}  // namespace gradientflow::testing
