#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/device/device_conformance.h"

// Streams and events of a Device.
namespace gradientflow::testing {
namespace {

using Bytes = std::vector<std::byte>;

bool Done(const Event& event) {
  const Result<bool> done = event.Query();
  return IsOk(done) && done.value();
}

// Returns once the event is done; uses queries only.
void Poll(const Event& event) {
  while (!Done(event) && !::testing::Test::HasFailure()) {
    std::this_thread::yield();
  }
}

TEST_P(DeviceTest, AnEventThatWasNeverRecordedIsDone) {
  const auto event = NewEvent();
  EXPECT_TRUE(Done(*event));
  IsOk(event->Synchronize());
  const auto stream = NewStream();
  IsOk(stream->Wait(*event));
  IsOk(stream->Synchronize());
}

TEST_P(DeviceTest, WorkOfAStreamIsInOrder) {
  const auto stream = NewStream();
  const DeviceMemory memory = Upload(RandomBytes(1, 40001));
  const DeviceMemory back = AllocatePinned(40001);
  for (int i = 0; i < 100; ++i) {
    IsOk(stream->Fill(memory.get(), i, 40001 - i));
  }
  IsOk(stream->Copy(back.get(), memory.get(), 40001 - 99));
  const auto event = NewEvent();
  IsOk(stream->Record(event.get()));
  Poll(*event);
  EXPECT_EQ(Bytes(back.get(), back.get() + 40001 - 99),
            Bytes(40001 - 99, std::byte{99}));
}

TEST_P(DeviceTest, TimedEventsTellHowLongTheWorkBetweenThemTook) {
  const auto stream = NewStream();
  const DeviceMemory memory = Allocate(40001);
  const auto begin = std::move(device_->NewTimedEvent()).value();
  const auto end = std::move(device_->NewTimedEvent()).value();
  IsOk(stream->Record(begin.get()));
  IsOk(stream->Fill(memory.get(), 1, 40001));
  IsOk(stream->Record(end.get()));
  IsOk(stream->Synchronize());
  const Result<double> seconds = end->SecondsSince(*begin);
  ASSERT_TRUE(seconds.ok()) << seconds.status().ToString();
  EXPECT_GE(seconds.value(), 0);
  EXPECT_LT(seconds.value(), 60);
  const auto plain = NewEvent();
  IsOk(stream->Record(plain.get()));
  IsOk(stream->Synchronize());
  EXPECT_FALSE(plain->SecondsSince(*begin).ok());
}

TEST_P(DeviceTest, NothingBlocksTheHostWhileAStreamIsHeld) {
  const auto stream = NewStream();
  const auto other = NewStream();
  const auto event = NewEvent();
  const auto later = NewEvent();
  const DeviceMemory memory = Allocate(1000);
  const DeviceMemory pinned = Pin(RandomBytes(3, 1000));
  const auto release = Hold(stream.get());

  for (int i = 0; i < 50; ++i) {
    IsOk(stream->Copy(memory.get(), pinned.get(), 1000));
    IsOk(stream->Record(event.get()));
    IsOk(other->Wait(*event));
    IsOk(other->Record(later.get()));
    EXPECT_FALSE(Done(*event));
    EXPECT_FALSE(Done(*later));
  }
  release();
  IsOk(later->Synchronize());
  EXPECT_TRUE(Done(*later));
  EXPECT_TRUE(Done(*event));
}

TEST_P(DeviceTest, WaitOrdersTwoStreams) {
  const auto producer = NewStream();
  const auto consumer = NewStream(true);
  const auto filled = NewEvent();
  const auto taken = NewEvent();
  const DeviceMemory memory = Allocate(70001);
  for (int round = 0; round < 20; ++round) {
    const Bytes data = RandomBytes(round, 70001);
    const DeviceMemory from = Pin(data);
    const DeviceMemory to = AllocatePinned(data.size());
    const auto release = Hold(producer.get());
    IsOk(producer->Wait(*taken));  // From the last round.
    IsOk(producer->Copy(memory.get(), from.get(), data.size()));
    IsOk(producer->Record(filled.get()));
    IsOk(consumer->Wait(*filled));
    IsOk(consumer->Copy(to.get(), memory.get(), data.size()));
    IsOk(consumer->Record(taken.get()));
    release();
    Poll(*taken);
    EXPECT_EQ(Bytes(to.get(), to.get() + data.size()), data) << round;
  }
}

TEST_P(DeviceTest, StreamsDoNotWaitForEachOther) {
  const auto held = NewStream();
  const auto free = NewStream();
  const Bytes data = RandomBytes(11, 5003);
  const DeviceMemory from = Pin(data);
  const DeviceMemory memory = Allocate(data.size());
  const DeviceMemory back = AllocatePinned(data.size());
  const auto release = Hold(held.get());
  IsOk(free->Copy(memory.get(), from.get(), data.size()));
  IsOk(free->Copy(back.get(), memory.get(), data.size()));
  IsOk(free->Synchronize());
  EXPECT_EQ(Bytes(back.get(), back.get() + data.size()), data);
  release();
}

TEST_P(DeviceTest, RecordingAgainMovesAnEvent) {
  const auto stream = NewStream();
  const auto waiter = NewStream();
  const auto event = NewEvent();
  IsOk(stream->Record(event.get()));
  Poll(*event);

  IsOk(waiter->Wait(*event));  // For the first record, which is done.
  const auto release = Hold(stream.get());
  IsOk(stream->Record(event.get()));
  EXPECT_FALSE(Done(*event));
  IsOk(waiter->Synchronize());
  release();
  IsOk(event->Synchronize());
  EXPECT_TRUE(Done(*event));
}

TEST_P(DeviceTest, AnEventMovesToAnotherStream) {
  const auto held = NewStream();
  const auto free = NewStream();
  const auto event = NewEvent();
  const auto release = Hold(held.get());
  IsOk(held->Record(event.get()));
  EXPECT_FALSE(Done(*event));
  IsOk(free->Record(event.get()));
  Poll(*event);
  release();
}

TEST_P(DeviceTest, DestroyingAStreamWaitsForItsWork) {
  const Bytes data = RandomBytes(17, 300007);
  const DeviceMemory from = Pin(data);
  const DeviceMemory memory = Allocate(data.size());
  const DeviceMemory back = AllocatePinned(data.size());
  auto stream = NewStream();
  const auto release = Hold(stream.get());
  IsOk(stream->Copy(memory.get(), from.get(), data.size()));
  IsOk(stream->Copy(back.get(), memory.get(), data.size()));

  std::atomic<bool> released{false};
  std::thread later([&] {
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    released.store(true);
    release();
  });
  stream.reset();
  EXPECT_TRUE(released.load());
  later.join();
  EXPECT_EQ(Bytes(back.get(), back.get() + data.size()), data);
}

TEST_P(DeviceTest, AWrappedStreamIsTheSameStream) {
  const auto stream = NewStream();
  const auto event = NewEvent();
  const DeviceMemory memory = Allocate(999);
  const DeviceMemory back = AllocatePinned(999);
  const auto release = Hold(stream.get());
  {
    const auto wrapped = device_->Wrap(stream->native());
    EXPECT_EQ(wrapped->native(), stream->native());
    IsOk(wrapped->Fill(memory.get(), 0x3C, 999));
  }  // Waits for nothing.
  IsOk(stream->Copy(back.get(), memory.get(), 999));
  IsOk(stream->Record(event.get()));
  EXPECT_FALSE(Done(*event));
  release();
  Poll(*event);
  EXPECT_EQ(Bytes(back.get(), back.get() + 999), Bytes(999, std::byte{0x3C}));
}

TEST_P(DeviceTest, TheDefaultStreamCanBeWrapped) {
  const auto stream = device_->Wrap(nullptr);
  const DeviceMemory memory = Allocate(77);
  IsOk(stream->Fill(memory.get(), 0x21, 77));
  IsOk(stream->Synchronize());
  EXPECT_EQ(Download(memory.get(), 77), Bytes(77, std::byte{0x21}));
}

TEST_P(DeviceTest, ItSaysWhatItIs) {
  const std::string index = ":" + std::to_string(device_->id().index);
  EXPECT_NE(device_->description().find(index), std::string::npos)
      << device_->description();
}

}  // namespace
}  // namespace gradientflow::testing
