#include "transports/shm/fifo.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "tests/transports/link_owner.h"

namespace gradientflow {
namespace {

using testing::Pattern;

struct OwnFifo {
  explicit OwnFifo(std::size_t capacity) : data(capacity) {
    memory = {&control, data.data(), capacity};
  }
  FifoControl control;
  std::vector<std::byte> data;
  FifoMemory memory;
};

TEST(FifoCapacity, IsAPowerOfTwoWithinLimits) {
  EXPECT_EQ(FifoCapacity(0), kMinFifoBytes);
  EXPECT_EQ(FifoCapacity(4096), 4096U);
  EXPECT_EQ(FifoCapacity(4097), 8192U);
  EXPECT_EQ(FifoCapacity(~std::size_t{0}), kMaxFifoBytes);
}

TEST(Fifo, KeepsTheStreamUnderRandomPieces) {
  std::mt19937 random(7);
  for (const std::size_t capacity : {4096U, 8192U}) {
    OwnFifo fifo(capacity);
    FifoWriter writer(fifo.memory);
    FifoReader reader(fifo.memory);
    const std::vector<std::byte> in = Pattern(capacity, 300007);
    std::vector<std::byte> out(in.size());
    std::size_t written = 0;
    std::size_t read = 0;
    while (read < in.size()) {
      ASSERT_TRUE(writer.Refresh().ok());
      const std::size_t w = std::min(
          {random() % (capacity + 1), writer.room(), in.size() - written});
      writer.Write(std::span(in).subspan(written, w));
      written += w;
      if (random() % 2 == 0 || written == in.size()) writer.Publish();
      ASSERT_TRUE(reader.Refresh().ok());
      const std::size_t r =
          std::min<std::size_t>(random() % (capacity + 1), reader.available());
      reader.Read(std::span(out).subspan(read, r));
      read += r;
      if (random() % 2 == 0) reader.Release();
    }
    EXPECT_EQ(in, out);
  }
}

TEST(Fifo, ShowsNothingBeforePublishAndFreesNothingBeforeRelease) {
  OwnFifo fifo(4096);
  FifoWriter writer(fifo.memory);
  FifoReader reader(fifo.memory);
  std::vector<std::byte> bytes(4096);
  writer.Write(bytes);
  ASSERT_TRUE(reader.Refresh().ok());
  EXPECT_EQ(reader.available(), 0U);
  writer.Publish();
  ASSERT_TRUE(reader.Refresh().ok());
  EXPECT_EQ(reader.available(), 4096U);
  reader.Read(bytes);
  ASSERT_TRUE(writer.Refresh().ok());
  EXPECT_EQ(writer.room(), 0U);
  reader.Release();
  ASSERT_TRUE(writer.Refresh().ok());
  EXPECT_EQ(writer.room(), 4096U);
}

TEST(Fifo, CarriesAStreamBetweenTwoThreads) {
  OwnFifo fifo(4096);
  const std::vector<std::byte> in = Pattern(3, 1000003);
  std::vector<std::byte> out(in.size());
  std::thread producer([&] {
    FifoWriter writer(fifo.memory);
    std::size_t written = 0;
    while (written < in.size()) {
      ASSERT_TRUE(writer.Refresh().ok());
      const std::size_t w = std::min(writer.room(), in.size() - written);
      if (w == 0) std::this_thread::yield();
      writer.Write(std::span(in).subspan(written, w));
      writer.Publish();
      written += w;
    }
  });
  FifoReader reader(fifo.memory);
  std::size_t read = 0;
  while (read < out.size()) {
    ASSERT_TRUE(reader.Refresh().ok());
    const std::size_t r = reader.available();
    if (r == 0) std::this_thread::yield();
    reader.Read(std::span(out).subspan(read, r));
    reader.Release();
    read += r;
  }
  producer.join();
  EXPECT_EQ(in, out);
}

// A peer can write anything to the shared counters, but must never cause a
// length beyond the FIFO.
TEST(Fifo, RefusesEveryImpossibleCounter) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 2000; ++round) {
    OwnFifo fifo(4096);
    FifoWriter writer(fifo.memory);
    FifoReader reader(fifo.memory);
    std::vector<std::byte> bytes(random() % 4097);
    writer.Write(bytes);
    writer.Publish();
    ASSERT_TRUE(reader.Refresh().ok());
    std::vector<std::byte> some(random() % (bytes.size() + 1));
    reader.Read(some);
    reader.Release();
    // Near misses, and arbitrary values.
    const std::uint64_t head =
        round % 2 ? random() : bytes.size() + random() % 9000 - 4500;
    fifo.control.head.store(head);
    const bool head_possible =
        head >= bytes.size() && head <= some.size() + 4096;
    const Status seen = reader.Refresh();
    ASSERT_EQ(seen.ok(), head_possible) << head;
    if (!seen.ok()) {
      EXPECT_EQ(seen.code(), StatusCode::kDataLoss);
    }
    ASSERT_LE(reader.available(), 4096U);
    const std::uint64_t tail = round % 2 ? random() : random() % 9000 - 4500;
    fifo.control.tail.store(tail);
    ASSERT_EQ(writer.Refresh().ok(), tail <= bytes.size()) << tail;
    ASSERT_LE(writer.room(), 4096U);
  }
}

}  // namespace
}  // namespace gradientflow
