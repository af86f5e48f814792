#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/status.h"
#include "tests/base/heap_count.h"
#include "tests/transports/fabric_ranks.h"
#include "transports/fabric.h"

// Messages with many tags arrive in order, and leave no state once received.
namespace gradientflow {
namespace {

using testing::FabricRanks;
using testing::HeapBytes;
using testing::TransferEnding;
using Random = std::mt19937_64;

// Less than the numbers of some hundred tags take.
constexpr std::size_t kFewBytes = std::size_t{16} << 10;

class ArrivalsTest : public ::testing::Test, protected FabricRanks {
 protected:
  void SetUp() override {
    FabricOptions options;
    // Too little for all messages, so that some are announced.
    options.early_bytes = 2000;
    Make(2, options);
  }
  ~ArrivalsTest() override { fabrics.clear(); }

  struct Receiving {
    std::uint64_t value = 0;
    TransferEnding ending;
  };
  void Send(std::uint32_t tag, std::uint64_t value) {
    auto& [kept, ending] =
        *sent_.emplace_back(new std::pair(value, TransferEnding()));
    fabrics[0]->Send(
        1, PointToPointTag(tag, 0),
        {reinterpret_cast<const std::byte*>(&kept), sizeof(kept), {}}, {},
        ending.done());
  }
  std::unique_ptr<Receiving> Receive(std::uint32_t tag) {
    auto receiving = std::make_unique<Receiving>();
    fabrics[1]->Recv(0, PointToPointTag(tag, 0),
                     {reinterpret_cast<std::byte*>(&receiving->value),
                      sizeof(receiving->value),
                      {}},
                     0, receiving->ending.done());
    return receiving;
  }
  void Poll() {
    for (auto& fabric : fabrics) fabric->Poll();
    while (!sent_.empty() && sent_.front()->second.times == 1)
      sent_.pop_front();
  }
  std::deque<std::unique_ptr<std::pair<std::uint64_t, TransferEnding>>> sent_;
};

TEST_F(ArrivalsTest, ManyTagsLeaveNothingBehind) {
  std::size_t before = 0;
  std::size_t most = 0;
  for (std::uint32_t i = 0; i < 200000; ++i) {
    const std::uint32_t tag = kNumberedTags + i * 7919;
    if (i % 2 == 0) Send(tag, i);
    if (i % 3 == 0) Poll();
    const auto receiving = Receive(tag);
    if (i % 2 != 0) Send(tag, i);
    for (int n = 0; n < 100 && receiving->ending.times == 0; ++n) Poll();
    ASSERT_EQ(receiving->ending.times, 1);
    ASSERT_EQ(receiving->value, i);
    if (i == 1000) before = HeapBytes();
    if (i > 1000) most = std::max(most, HeapBytes());
  }
  EXPECT_LE(most, before + kFewBytes);
}

// Messages with a few tags are sent and received in random order: those of one
// tag arrive in the order of sending, however many wait.
TEST_F(ArrivalsTest, OfOneTagComeInOrder) {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    std::map<std::uint32_t, std::uint64_t> sent;
    std::map<std::uint32_t, std::deque<std::unique_ptr<Receiving>>> receiving;
    std::map<std::uint32_t, std::uint64_t> received;
    const auto check = [&] {
      for (auto& [tag, queue] : receiving) {
        while (!queue.empty() && queue.front()->ending.times == 1) {
          ASSERT_TRUE(queue.front()->ending.status.ok());
          ASSERT_EQ(queue.front()->value, received[tag]++) << "tag " << tag;
          queue.pop_front();
        }
      }
    };
    for (int i = 0; i < 200; ++i) {
      const auto tag = static_cast<std::uint32_t>(kNumberedTags + random() % 3);
      // Each round favours one side, so that either side waits for the other.
      if (random() % 10 < 3 + static_cast<std::uint64_t>(round) % 5) {
        Send(tag, sent[tag]++);
      } else {
        receiving[tag].push_back(Receive(tag));
      }
      if (random() % 4 == 0) Poll();
      check();
    }
    for (std::uint32_t tag = kNumberedTags; tag < kNumberedTags + 3; ++tag) {
      const std::uint64_t posted = received[tag] + receiving[tag].size();
      for (std::uint64_t n = posted; n < sent[tag]; ++n) {
        receiving[tag].push_back(Receive(tag));
      }
      while (sent[tag] < posted) Send(tag, sent[tag]++);
    }
    for (int i = 0; i < 300; ++i) Poll();
    check();
    for (const auto& [tag, queue] : receiving) ASSERT_TRUE(queue.empty());
  }
}

TEST_F(ArrivalsTest, OfAClosedGroupAreForgotten) {
  const std::uint64_t value = 5;
  std::size_t before = 0;
  for (std::uint32_t round = 0; round < 2000; ++round) {
    const MessageId id = {PointToPointTag(kNumberedTags + round * 7919, 0), 4};
    TransferEnding sent[3];
    for (TransferEnding& ending : sent) {
      fabrics[0]->Send(
          1, id,
          {reinterpret_cast<const std::byte*>(&value), sizeof(value), {}}, {},
          ending.done());
    }
    for (int i = 0; i < 100; ++i) Poll();
    ASSERT_TRUE(fabrics[1]->HasMessage(0, id));
    fabrics[1]->CloseGroup(4);
    ASSERT_FALSE(fabrics[1]->HasMessage(0, id));
    for (int i = 0; i < 100 && sent[2].times == 0; ++i) Poll();
    for (const TransferEnding& ending : sent) ASSERT_EQ(ending.times, 1);
    if (round == 100) before = HeapBytes();
  }
  EXPECT_LE(HeapBytes(), before + kFewBytes);
}

}  // namespace
}  // namespace gradientflow
