#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/mutex.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/placed_notice.h"
#include "tests/communicator/ranks.h"
#include "tests/rdma/cards.h"
#include "tests/rdma/fake_verbs.h"
#include "transports/rdma/frames.h"
#include "transports/rdma/verbs_api.h"

// What an allreduce posts, counted where it is posted: on fake devices, and in
// tests/rdma/run on the kernel's.
namespace gradientflow::testing {
namespace {

constexpr int kMostRanks = 8;
constexpr std::uint64_t kCalls = 5;

// Work requests of a rank.
struct Posted {
  std::uint64_t data = 0;     // With bytes of messages.
  std::uint64_t bytes = 0;    // These bytes.
  std::uint64_t numbers = 0;  // Without bytes, to tell of a placed message.
  std::uint64_t others = 0;   // What ranks ask, grant and give back.
};

// What a device has posted. Its rank posts from whichever thread drives it.
class Counter {
 public:
  void Count(const ibv_send_wr& request) GF_EXCLUDES(mutex_);
  // What was posted since the last time.
  Posted Take() GF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return std::exchange(posted_, Posted());
  }

 private:
  Mutex mutex_;
  Posted posted_ GF_GUARDED_BY(mutex_);
};

void Counter::Count(const ibv_send_wr& request) {
  std::size_t bytes = 0;
  for (int i = 0; i < request.num_sge; ++i) bytes += request.sg_list[i].length;
  const bool tells = request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  const auto number = DecodeImmediate(tells ? ntohl(request.imm_data) : 0);
  ASSERT_TRUE(number.ok()) << number.status().ToString();
  const MutexLock lock(mutex_);
  if (tells && number.value().kind != ImmediateKind::kPlaced) {
    ++posted_.others;
  } else if (bytes == 0) {
    ++posted_.numbers;
  } else {
    ++posted_.data;
    posted_.bytes += bytes;
  }
}

// By the number in the device's name. Each rank has a device.
std::array<Counter, kMostRanks> counters;
std::atomic<decltype(VerbsApi::post_send)> post_send{nullptr};

int CountAndPost(ibv_qp* pair, ibv_send_wr* first, ibv_send_wr** bad) {
  const std::string device = pair->context->device->name;
  Counter& counter = counters.at(static_cast<std::size_t>(device.back() - '0'));
  for (const ibv_send_wr* request = first; request != nullptr;
       request = request->next) {
    counter.Count(*request);
  }
  return post_send.load()(pair, first, bad);
}

class RdmaPosts : public ::testing::TestWithParam<int> {
 protected:
  RdmaPosts() {
    if (RealCards().empty()) {
      FakeHost host;
      for (int r = 0; r < kMostRanks; ++r) {
        host.devices.push_back(UsualHost(r).devices.front());
      }
      fake_.emplace(0);
      fake_->AddHost(host);
      ReplaceVerbs(fake_->api(0));
    }
    auto counting = std::make_shared<VerbsApi>(*LoadVerbs().value());
    post_send = counting->post_send;
    counting->post_send = &CountAndPost;
    counting_ = std::move(counting);
  }
  ~RdmaPosts() override { ReplaceVerbs(nullptr); }

  // Returns what each of GetParam() ranks posts in kCalls allreduces of one
  // segment, with so many floats per block.
  std::vector<Posted> Run(const std::string& algorithm, std::size_t block) {
    const int ranks = GetParam();
    ReplaceVerbs(counting_);  // The end of each job takes it away.
    CommJob job;
    job.size = ranks;
    job.over = Over::kTcp;
    job.options.algorithm = algorithm;
    job.differ = [](int rank, Options* options) {
      options->fabric = "rdma";
      options->transport_settings["rdma_devices"] =
          StrCat("=", RealCards().empty() ? "fake" : RealCards(), rank, ":1");
      options->host_id = StrCat("host", rank);
    };
    const std::size_t floats = block * static_cast<std::size_t>(ranks);
    std::vector<Posted> posted(static_cast<std::size_t>(ranks));
    std::barrier<> all(ranks);
    RunRanks(job, [&](Communicator& comm) {
      const auto rank = static_cast<std::size_t>(comm.rank());
      const auto memory = comm.AllocateShared(floats * sizeof(float));
      ASSERT_TRUE(memory.ok()) << memory.status().ToString();
      CollectiveCall sum;
      sum.output = memory.value().data;
      sum.count = floats;
      // The first call is not counted: by its end ranks have answered whatever
      // they told each other before.
      for (std::uint64_t call = 0; call <= kCalls; ++call) {
        EXPECT_TRUE(comm.Run(sum).ok());
        all.arrive_and_wait();
        if (call == 0) counters.at(rank).Take();
        all.arrive_and_wait();
      }
      posted[rank] = counters.at(rank).Take();
      all.arrive_and_wait();
    });
    return posted;
  }

  // What a rank sends in a call, in floats.
  static std::uint64_t FloatsSent(std::size_t block) {
    return 2 * (static_cast<std::uint64_t>(GetParam()) - 1) * block;
  }

 private:
  std::optional<FakeVerbs> fake_;
  std::shared_ptr<const VerbsApi> counting_;
};

TEST_P(RdmaPosts, APlacedAllreduceIsItsDataAndNothingElse) {
  const auto peers = static_cast<std::uint64_t>(GetParam()) - 1;
  // Data of more than 8 KiB and the number that tells of it are two requests.
  for (const auto& [block, apart] : {std::pair{256U, 0U}, {4096U, 1U}}) {
    for (const Posted& of : Run("gdraa", block)) {
      EXPECT_EQ(of.data, kCalls * 2 * peers);
      EXPECT_EQ(of.numbers, kCalls * 2 * peers * apart);
      EXPECT_EQ(of.others, 0U);
      EXPECT_EQ(of.bytes, kCalls * (FloatsSent(block) * sizeof(float) +
                                    peers * kPlacedHeaderBytes));
    }
  }
}

// The same data with handshakes, which shows that these are counted.
TEST_P(RdmaPosts, ARingOfLongMessagesAsksForEach) {
  constexpr std::size_t kBlock = 4096;
  const auto peers = static_cast<std::uint64_t>(GetParam()) - 1;
  for (const Posted& of : Run("ring", kBlock)) {
    EXPECT_EQ(of.data, kCalls * 2 * peers);
    EXPECT_EQ(of.bytes, kCalls * FloatsSent(kBlock) * sizeof(float));
    // A request and a grant, and the number that tells of the data.
    EXPECT_GE(of.others, kCalls * 3 * 2 * peers);
  }
}

INSTANTIATE_TEST_SUITE_P(Of, RdmaPosts, ::testing::Values(2, 3, 4, 5, 6, 7, 8),
                         [](const auto& ranks) {
                           return StrCat("ranks", ranks.param);
                         });

}  // namespace
}  // namespace gradientflow::testing
