#include "tests/device/fake_device.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "tests/device/device_conformance.h"

// What the fake adds to a Device: tests may hold, count and break it.
namespace gradientflow::testing {
namespace {

using Bytes = std::vector<std::byte>;

Status Broken(const char* text) { return Status(StatusCode::kInternal, text); }

bool Done(const Event& event) {
  const Result<bool> done = event.Query();
  return IsOk(done) && done.value();
}

// A device with a stream, an event and some memory.
struct Rig {
  explicit Rig(const FakeOptions& options = FakeOptions()) : device(options) {}

  int Rescale(float* residual, std::size_t n, void* native) {
    const kernels::ChunkRescaleArgs args = {
        .range = {.elements = n, .chunk_elements = n, .first = 0, .count = 1},
        .residual = residual,
        .factor = 2};
    return device.chunk_kernels().chunk_rescale(args, native);
  }
  float* floats() { return reinterpret_cast<float*>(memory.get()); }

  FakeDevice device;
  DeviceMemory memory = device.Allocate(400).value();
  DeviceMemory pinned = device.AllocatePinned(400).value();
  std::unique_ptr<Event> event = device.NewEvent().value();
  std::unique_ptr<Stream> stream = device.NewStream(false).value();
};

TEST(FakeDeviceTest, PinnedMemoryIsPoisoned) {
  Rig rig;
  EXPECT_EQ(Bytes(rig.pinned.get(), rig.pinned.get() + 400),
            Bytes(400, std::byte{kFakePoison}));
}

TEST(FakeDeviceTest, HeldStreamsDoNothing) {
  Rig rig;
  rig.device.HoldStreams();
  IsOk(rig.stream->Copy(rig.memory.get(), rig.pinned.get(), 400));
  EXPECT_EQ(rig.Rescale(rig.floats(), 7, rig.stream->native()), 0);
  IsOk(rig.stream->Record(rig.event.get()));
  for (int i = 0; i < 2000; ++i) {
    EXPECT_FALSE(Done(*rig.event));
    std::this_thread::yield();
  }
  rig.device.ReleaseStreams();
  IsOk(rig.event->Synchronize());
  EXPECT_EQ(rig.memory.get()[399], std::byte{kFakePoison});
}

TEST(FakeDeviceTest, LazyStreamsWorkOnlyWhenLookedAt) {
  Rig rig({.lag = FakeLag::kLazy});
  for (int i = 0; i < 3; ++i) {
    IsOk(rig.stream->Fill(rig.memory.get(), i, 400));
  }
  IsOk(rig.stream->Record(rig.event.get()));
  // Four pieces of work need at least four looks.
  int looks = 0;
  do {
    ++looks;
  } while (!Done(*rig.event));
  EXPECT_GE(looks, 4);
}

TEST(FakeDeviceTest, CallsAreCounted) {
  Rig rig;
  int local = 0;
  IsOk(rig.stream->Copy(rig.memory.get(), rig.pinned.get(), 8));
  IsOk(rig.stream->Copy(&local, rig.memory.get(), sizeof(local)));
  IsOk(rig.stream->Fill(rig.memory.get(), 1, 8));
  EXPECT_EQ(rig.Rescale(rig.floats(), 3, rig.stream->native()), 0);
  IsOk(rig.stream->Record(rig.event.get()));
  IsOk(rig.stream->Wait(*rig.event));
  IsOk(rig.event->Query());
  IsOk(rig.event->Synchronize());
  IsOk(rig.stream->Synchronize());

  const FakeDevice& device = rig.device;
  EXPECT_EQ(device.count(FakeCall::kAllocate), 1);
  EXPECT_EQ(device.count(FakeCall::kAllocatePinned), 1);
  EXPECT_EQ(device.count(FakeCall::kRegisterHost), 0);
  EXPECT_EQ(device.count(FakeCall::kNewStream), 1);
  EXPECT_EQ(device.count(FakeCall::kNewEvent), 1);
  EXPECT_EQ(device.count(FakeCall::kCopy), 2);
  EXPECT_EQ(device.count(FakeCall::kFill), 1);
  EXPECT_EQ(device.count(FakeCall::kLaunch), 1);
  EXPECT_EQ(device.count(FakeCall::kRecord), 1);
  EXPECT_EQ(device.count(FakeCall::kWait), 1);
  EXPECT_EQ(device.count(FakeCall::kQuery), 1);
  EXPECT_EQ(device.count(FakeCall::kSynchronize), 2);
  EXPECT_EQ(device.count(FakeCall::kAny), 12);
  EXPECT_EQ(device.pageable_copies(), 1);
}

TEST(FakeDeviceTest, OneCallCanFail) {
  Rig rig;
  rig.device.FailCall(FakeCall::kCopy, 1, Broken("second copy"));
  IsOk(rig.stream->Copy(rig.memory.get(), rig.pinned.get(), 8));
  IsOk(rig.stream->Fill(rig.memory.get(), 1, 8));
  EXPECT_EQ(rig.stream->Copy(rig.memory.get(), rig.pinned.get(), 400).message(),
            "second copy");
  IsOk(rig.stream->Synchronize());
  EXPECT_EQ(rig.memory.get()[399], std::byte{0});  // It did nothing.
  IsOk(rig.stream->Copy(rig.memory.get(), rig.pinned.get(), 8));

  rig.device.FailCall(FakeCall::kLaunch, 0, Broken("launch"));
  EXPECT_EQ(rig.Rescale(rig.floats(), 3, rig.stream->native()),
            kFakeLaunchError);
  EXPECT_EQ(rig.Rescale(rig.floats(), 3, rig.stream->native()), 0);
  rig.device.FailCall(FakeCall::kQuery, 0, Broken("query"));
  EXPECT_EQ(rig.event->Query().status().message(), "query");
  IsOk(rig.stream->Synchronize());
}

TEST(FakeDeviceTest, EveryCallCanFailByItsNumber) {
  for (std::uint64_t nth = 0; nth < 8; ++nth) {
    Rig rig;
    rig.device.FailCall(FakeCall::kAny, nth, Broken("planned"));
    const std::vector<Status> all = {
        rig.device.Allocate(1).status(),
        rig.device.AllocatePinned(1).status(),
        rig.device.NewStream(true).status(),
        rig.device.NewEvent().status(),
        rig.stream->Fill(rig.memory.get(), 1, 8),
        rig.stream->Record(rig.event.get()),
        rig.stream->Wait(*rig.event),
        rig.stream->Synchronize(),
    };
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i].message(), i == nth ? "planned" : "") << i;
    }
  }
}

TEST(FakeDeviceTest, WorkThatFailsBreaksTheDeviceForGood) {
  Rig rig;
  const auto other = rig.device.NewStream(false).value();
  rig.device.FailWork(1, Broken("an uncorrectable error"));
  IsOk(rig.stream->Fill(rig.memory.get(), 1, 400));
  rig.device.HoldStreams();  // All are accepted before the first starts.
  IsOk(rig.stream->Fill(rig.memory.get(), 2, 400));
  IsOk(rig.stream->Record(rig.event.get()));
  IsOk(other->Wait(*rig.event));
  IsOk(other->Fill(rig.memory.get(), 3, 400));
  rig.device.ReleaseStreams();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(other->Synchronize().message(), "an uncorrectable error");
    EXPECT_EQ(rig.event->Query().status().message(), "an uncorrectable error");
    EXPECT_EQ(rig.device.Allocate(1).status().message(),
              "an uncorrectable error");
    EXPECT_EQ(rig.Rescale(rig.floats(), 3, other->native()), kFakeLaunchError);
  }
  EXPECT_EQ(rig.memory.get()[0], std::byte{1});
}

TEST(FakeDeviceTest, CopiesThatOverrunAreRefused) {
  Rig rig;
  const std::byte* from = rig.pinned.get();
  IsOk(rig.stream->Copy(rig.memory.get() + 1, from, 399));
  for (const Status& status :
       {rig.stream->Copy(rig.memory.get() + 2, from, 399),
        rig.stream->Copy(rig.memory.get(), from + 399, 2),
        rig.stream->Copy(rig.memory.get() + 1, rig.memory.get(), 2),
        rig.stream->Fill(rig.memory.get() + 399, 0, 2)}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  }
  IsOk(rig.stream->Synchronize());
}

TEST(FakeDeviceTest, AKernelOnOrdinaryMemoryBreaksTheDevice) {
  Rig rig;
  std::vector<float> local(7);
  EXPECT_EQ(rig.Rescale(local.data(), 7, rig.stream->native()),
            kFakeLaunchError);
  const Status status = rig.stream->Synchronize();
  EXPECT_NE(status.message().find("residual"), std::string::npos)
      << status.message();
}

TEST(FakeDeviceTest, AKernelThatOverrunsBreaksTheDevice) {
  Rig rig;
  EXPECT_EQ(rig.Rescale(rig.floats(), 100, rig.stream->native()), 0);
  EXPECT_EQ(rig.Rescale(rig.floats(), 101, rig.stream->native()),
            kFakeLaunchError);
  EXPECT_FALSE(rig.stream->Synchronize().ok());
}

TEST(FakeDeviceTest, MemoryIsLimited) {
  Rig rig({.memory_bytes = 1000});
  EXPECT_EQ(rig.device.Allocate(601).status().code(),
            StatusCode::kResourceExhausted);
  const auto most = rig.device.Allocate(600);
  IsOk(most);
  rig.memory.reset();
  IsOk(rig.device.Allocate(400));
}

TEST(FakeDeviceTest, OwnsExactlyWhatItAllocated) {
  Rig rig;
  std::byte* begin = rig.memory.get();
  EXPECT_FALSE(rig.device.Owns(begin - 1));
  EXPECT_TRUE(rig.device.Owns(begin + 399));
  EXPECT_FALSE(rig.device.Owns(begin + 400));
  const FakeDevice other;
  EXPECT_FALSE(other.Owns(begin));
  rig.memory.reset();
  EXPECT_FALSE(rig.device.Owns(begin));
}

TEST(FakeDeviceTest, TheNullStreamIsTheOnlyDevicesDefaultStream) {
  Rig rig;
  const auto wrapped = rig.device.Wrap(nullptr);
  IsOk(wrapped->Fill(rig.memory.get(), 0, 400));
  EXPECT_EQ(rig.Rescale(rig.floats(), 100, nullptr), 0);
  IsOk(wrapped->Synchronize());
  const FakeDevice second;
  EXPECT_EQ(rig.Rescale(rig.floats(), 100, nullptr), EINVAL);
  EXPECT_EQ(rig.Rescale(rig.floats(), 100, wrapped->native()), 0);
  IsOk(wrapped->Synchronize());
}

TEST(FakeDeviceTest, AForeignOrDestroyedStreamIsRefused) {
  Rig rig;
  FakeDevice other;
  EXPECT_FALSE(
      other.Wrap(rig.stream->native())->Fill(rig.memory.get(), 1, 1).ok());
  EXPECT_FALSE(other.Wrap(rig.stream->native())->Synchronize().ok());
  const auto foreign = other.NewEvent().value();
  EXPECT_FALSE(rig.stream->Record(foreign.get()).ok());
  EXPECT_FALSE(rig.stream->Wait(*foreign).ok());
  const auto wrapped = rig.device.Wrap(rig.stream->native());
  IsOk(wrapped->Synchronize());
  rig.stream.reset();
  EXPECT_EQ(wrapped->Synchronize().code(), StatusCode::kFailedPrecondition);
}

TEST(FakeDeviceTest, ListsOfPointersAreCopiedAtTheCall) {
  Rig rig;
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  std::memcpy(rig.pinned.get(), values.data(), 24);
  IsOk(rig.stream->Copy(rig.memory.get(), rig.pinned.get(), 24));
  std::vector<const void*> srcs = {rig.floats(), rig.floats() + 3};
  std::vector<void*> dsts = {rig.floats() + 6};
  const kernels::DType type = kernels::DType::kFloat32;
  rig.device.HoldStreams();
  EXPECT_EQ(rig.device.kernels().reduce_many({.srcs = srcs.data(),
                                              .sources = 2,
                                              .own = -1,
                                              .src_type = type,
                                              .dsts = dsts.data(),
                                              .dests = 1,
                                              .dst_type = type,
                                              .round_type = type,
                                              .n = 3,
                                              .op = kernels::ReduceOp::kSum,
                                              .scale = 1,
                                              .nonfinite = nullptr},
                                             rig.stream->native()),
            0);
  srcs = {nullptr, nullptr};
  dsts = {nullptr};
  rig.device.ReleaseStreams();
  IsOk(rig.stream->Copy(rig.pinned.get(), rig.memory.get() + 24, 12));
  IsOk(rig.stream->Synchronize());
  std::vector<float> sums(3);
  std::memcpy(sums.data(), rig.pinned.get(), 12);
  EXPECT_EQ(sums, (std::vector<float>{5, 7, 9}));
}

// The purpose of the lag: the consumer does not wait, and the test sees it.
TEST(FakeDeviceTest, AMissingWaitShows) {
  Rig rig;
  const auto producer = rig.device.NewStream(false).value();
  const auto release = rig.device.HoldStream(producer.get());
  IsOk(producer->Fill(rig.memory.get(), 0x77, 400));
  IsOk(producer->Record(rig.event.get()));
  IsOk(rig.stream->Copy(rig.pinned.get(), rig.memory.get(), 400));
  IsOk(rig.stream->Synchronize());
  EXPECT_EQ(rig.pinned.get()[0], std::byte{0});
  release();
  IsOk(rig.event->Synchronize());
}

}  // namespace
}  // namespace gradientflow::testing
