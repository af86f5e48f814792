#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gradientflow/base/mutex.h"
#include "gradientflow/base/str_cat.h"
#include "tests/rdma/fake_verbs.h"
#include "tests/session/steps.h"

// Sessions whose gradients are on devices beside network cards: which way the
// card has to the device's memory, what the ranks say about it, and that the
// results are right on each of them.
namespace gradientflow::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kSteps = 4;

class RdmaDevices : public ::testing::Test {
 protected:
  RdmaDevices() {
    job_.over = Over::kRdmaDevices;
    job_.size = 3;
    job_.tensors = SomeTensors();
    job_.options.algorithm = "gdraa";
    job_.options.bucket_bytes = kInfiniteBytes;  // Padding is sent.
    job_.options.log_level = LogLevel::kInfo;
  }

  // What the cards read from devices and wrote to them in kSteps steps.
  struct Moved {
    std::uint64_t read = 0;
    std::uint64_t written = 0;
    std::uint64_t elements = 0;  // Of the pool.
  };
  Moved RunSteps() {
    Moved moved;
    Mutex mutex;
    ::testing::internal::CaptureStderr();
    RunRanks(job_, [&](GradientSession& session) {
      for (int step = 0; step < kSteps; ++step) {
        ProduceAll(session, step);
        FinishAndCheck(
            session, step,
            job_.options.wire_dtype == DType::kFloat32 ? 1e-7 : 1e-3);
      }
      const MutexLock lock(mutex);
      const FakeVerbsStats stats = CardsOfRanks()->stats(0);
      moved.read = std::max(moved.read, stats.gpu_bytes_read);
      moved.written = std::max(moved.written, stats.gpu_bytes_written);
      moved.elements = session.pool().bytes / sizeof(float);
    });
    std::istringstream said(::testing::internal::GetCapturedStderr());
    for (std::string line; std::getline(said, line);) lines_.push_back(line);
    return moved;
  }
  // The lines of all ranks' logs with this text.
  std::vector<std::string> Logged(const std::string& text) const {
    std::vector<std::string> found;
    for (const std::string& line : lines_) {
      if (line.find(text) != std::string::npos) found.push_back(line);
    }
    return found;
  }

  Job job_;

 private:
  std::vector<std::string> lines_;
};

// All that ranks send each other leaves from devices and lands there.
TEST_F(RdmaDevices, GradientsTravelBetweenDevices) {
  for (const int size : {2, 3, 5}) {
    for (const bool dma_buf : {true, false}) {
      job_.size = size;
      job_.dma_buf = dma_buf;
      job_.peermem = !dma_buf;
      const Moved moved = RunSteps();
      const std::uint64_t expected =
          sizeof(float) * moved.elements *
          static_cast<std::uint64_t>((size - 1) * kSteps);
      EXPECT_EQ(moved.read, expected);
      EXPECT_EQ(moved.written, expected);
    }
  }
  EXPECT_EQ(Logged("RDMA reaches ").size(), 2 * (2 + 3 + 5));
  EXPECT_EQ(Logged(" by dma-buf").size(), 2 + 3 + 5);
  EXPECT_EQ(Logged(" by nvidia-peermem").size(), 2 + 3 + 5);
}

// They are packed on the device, and travel from there.
TEST_F(RdmaDevices, ConvertedGradientsTravelBetweenDevices) {
  job_.options.wire_dtype = DType::kFloat16;
  for (const int size : {2, 3, 5}) {
    job_.size = size;
    const Moved moved = RunSteps();
    const std::uint64_t expected =
        2 * moved.elements * static_cast<std::uint64_t>((size - 1) * kSteps);
    EXPECT_EQ(moved.read, expected);
    EXPECT_EQ(moved.written, expected);
  }
}

// Each rank has the bits that it has if it stages them: sums in the chunks that
// were sent, and its own gradients in the others.
TEST_F(RdmaDevices, SparseGradientsTravelBetweenDevices) {
  job_.options.sparsity = 0.7F;
  job_.options.chunk_elements = 1000;
  std::vector<std::vector<float>> pools[2];
  for (const bool flushes : {true, false}) {
    pools[flushes].resize(3);
    job_.flushes = flushes;
    Mutex mutex;
    RunRanks(job_, [&](GradientSession& session) {
      for (int step = 0; step < kSteps; ++step) {
        ProduceAll(session, step);
        ASSERT_TRUE(session.FinishStep().ok());
      }
      std::vector<float> pool;
      for (const std::size_t tensor : AllTensors(session)) {
        const auto part = Floats(session, tensor);
        pool.insert(pool.end(), part.begin(), part.end());
      }
      const MutexLock lock(mutex);
      EXPECT_EQ(CardsOfRanks()->stats(0).gpu_bytes_read > 0, flushes);
      pools[flushes][static_cast<std::size_t>(session.rank())] =
          std::move(pool);
    });
  }
  EXPECT_TRUE(pools[false] == pools[true]);
  EXPECT_FALSE(pools[true].front().empty());
}

TEST_F(RdmaDevices, WithoutAnyWayTheRanksSayWhyAndStage) {
  job_.dma_buf = false;
  const Moved moved = RunSteps();
  EXPECT_EQ(moved.read, 0U);
  EXPECT_EQ(moved.written, 0U);
  EXPECT_EQ(Logged("RDMA does not reach gradients on fake:").size(), 3U);
  const auto said = Logged("are staged in host memory for RDMA");
  EXPECT_EQ(said.size(), 3U) << "once per rank";
  EXPECT_THAT(said,
              Each(AllOf(HasSubstr("] W: "), HasSubstr("by dma-buf: fake:"),
                         HasSubstr("exports no dma-buf"),
                         HasSubstr("by nvidia-peermem: Bad address"),
                         HasSubstr("modprobe nvidia-peermem"))));
}

TEST_F(RdmaDevices, ARegistrationThatIsRefusedIsStaged) {
  job_.adapt = [](int /*rank*/, Options*, auto*) {
    CardsOfRanks()->FailCall(0, "reg_dmabuf_mr", 1, ENOMEM, 1000);
  };
  const Moved moved = RunSteps();
  EXPECT_EQ(moved.read, 0U);
  EXPECT_THAT(Logged("are staged in host memory for RDMA"),
              Contains(HasSubstr("by dma-buf: Cannot allocate memory; the "
                                 "window of the GPU (BAR1")));
}

// A card must not write to a device that cannot tell when the data is there.
TEST_F(RdmaDevices, ADeviceThatCannotFlushIsStaged) {
  job_.flushes = false;
  job_.peermem = true;
  const Moved moved = RunSteps();
  EXPECT_EQ(moved.read, 0U);
  EXPECT_THAT(Logged("are staged in host memory for RDMA"),
              AllOf(SizeIs(3U), Each(HasSubstr("cannot wait for writes of "
                                               "other devices"))));
}

}  // namespace
}  // namespace gradientflow::testing
