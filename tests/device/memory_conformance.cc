#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "tests/device/device_conformance.h"

// Memory, copies and kernels of a Device.
namespace gradientflow::testing {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::array<std::size_t, 11> kSizes = {
    0, 1, 2, 3, 7, 13, 255, 257, 4099, 65537, (1 << 20) + 1};

Bytes Framed(std::size_t before, const Bytes& data, std::size_t after,
             std::byte frame = std::byte{0}) {
  Bytes all(before, frame);
  all.insert(all.end(), data.begin(), data.end());
  all.insert(all.end(), after, frame);
  return all;
}

TEST_P(DeviceTest, AllocatedMemoryIsZeroedAlignedAndOwned) {
  for (const std::size_t bytes : kSizes) {
    const DeviceMemory memory = Allocate(bytes);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.get()) % 256, 0);
    EXPECT_EQ(Download(memory.get(), bytes), Bytes(bytes)) << bytes;
    EXPECT_TRUE(device_->Owns(memory.get())) << bytes;
    if (bytes == 0) continue;
    EXPECT_TRUE(device_->Owns(memory.get() + bytes - 1)) << bytes;
  }
}

TEST_P(DeviceTest, MemoryThatWasUsedBeforeIsZeroedAgain) {
  for (int round = 0; round < 5; ++round) {
    const DeviceMemory memory = Allocate(4099);
    EXPECT_EQ(Download(memory.get(), 4099), Bytes(4099)) << round;
    const auto stream = NewStream();
    IsOk(stream->Fill(memory.get(), 0xAB, 4099));
    IsOk(stream->Synchronize());
  }
}

TEST_P(DeviceTest, OwnsNoMemoryOfTheHost) {
  int local = 0;
  EXPECT_FALSE(device_->Owns(nullptr));
  EXPECT_FALSE(device_->Owns(&local));
  const DeviceMemory pinned = AllocatePinned(100);
  EXPECT_FALSE(device_->Owns(pinned.get()));
  // The memory asked about leaves nothing behind.
  EXPECT_NE(Allocate(100), nullptr);
}

TEST_P(DeviceTest, CopiesOfOddSizesAndPlacesAreExact) {
  const auto stream = NewStream();
  for (const std::size_t bytes : kSizes) {
    const Bytes data = RandomBytes(bytes + 1, bytes);
    const DeviceMemory from = Pin(data);
    const DeviceMemory there = Allocate(bytes + 8);
    const DeviceMemory second = Allocate(bytes + 8);
    const DeviceMemory back = Pin(Bytes(bytes + 8, std::byte{0x55}));
    IsOk(stream->Copy(there.get() + 3, from.get(), bytes));
    IsOk(stream->Copy(second.get() + 5, there.get() + 3, bytes));
    IsOk(stream->Copy(back.get() + 1, second.get() + 5, bytes));
    IsOk(stream->Synchronize());

    EXPECT_EQ(Bytes(back.get(), back.get() + bytes + 8),
              Framed(1, data, 7, std::byte{0x55}))
        << bytes;
    // Nothing around it is written.
    EXPECT_EQ(Download(second.get(), bytes + 8), Framed(5, data, 3)) << bytes;
  }
}

TEST_P(DeviceTest, FillSetsItsBytesAndNoOthers) {
  const auto stream = NewStream();
  for (const std::size_t bytes : kSizes) {
    const Bytes data = RandomBytes(bytes, bytes + 9);
    const DeviceMemory memory = Upload(data);
    IsOk(stream->Fill(memory.get() + 4, 0x7E, bytes));
    IsOk(stream->Synchronize());
    Bytes expected = data;
    std::fill_n(expected.begin() + 4, bytes, std::byte{0x7E});
    EXPECT_EQ(Download(memory.get(), bytes + 9), expected) << bytes;
  }
}

TEST_P(DeviceTest, OrdinaryMemoryCanBeCopiedToo) {
  const Bytes data = RandomBytes(5, 70001);
  Bytes back(data.size());
  const DeviceMemory memory = Allocate(data.size());
  const auto stream = NewStream();
  IsOk(stream->Copy(memory.get(), data.data(), data.size()));
  IsOk(stream->Copy(back.data(), memory.get(), data.size()));
  IsOk(stream->Synchronize());
  EXPECT_EQ(back, data);
}

TEST_P(DeviceTest, RegisteredMemoryTakesCopiesAndCanBeRegisteredAgain) {
  const Bytes data = RandomBytes(9, 3 * 4096 + 17);
  Bytes host = data;
  for (int round = 0; round < 2; ++round) {
    auto lock = device_->RegisterHost(host.data(), host.size());
    ASSERT_TRUE(IsOk(lock));
    EXPECT_FALSE(device_->Owns(host.data()));
    const auto again = device_->RegisterHost(host.data(), host.size());
    EXPECT_FALSE(again.ok());
    EXPECT_NE(again.status().message(), "");

    const DeviceMemory memory = Allocate(host.size());
    const auto stream = NewStream();
    IsOk(stream->Copy(memory.get(), host.data(), host.size()));
    IsOk(stream->Synchronize());
    EXPECT_EQ(Download(memory.get(), host.size()), data);
  }
  EXPECT_TRUE(IsOk(device_->RegisterHost(nullptr, 0)));
}

TEST_P(DeviceTest, TooMuchMemoryIsAnErrorThatSaysHowMuch) {
  const auto memory = device_->Allocate(std::size_t{1} << 50);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(memory.status().message().find("1125899906842624"),
            std::string::npos)
      << memory.status().message();
  EXPECT_NE(memory.status().message().find("free"), std::string::npos)
      << memory.status().message();
  // The device still works.
  EXPECT_EQ(Download(Allocate(100).get(), 100), Bytes(100));
}

TEST_P(DeviceTest, BadCopiesAreErrorsWithText) {
  const DeviceMemory memory = Allocate(100);
  const auto stream = NewStream();
  for (const Status& status :
       {stream->Copy(nullptr, memory.get(), 10), stream->Fill(nullptr, 1, 10),
        device_->RegisterHost(nullptr, 10).status(), stream->Record(nullptr)}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message(), "");
  }
  IsOk(stream->Fill(memory.get(), 0x11, 100));
  IsOk(stream->Synchronize());
  EXPECT_EQ(Download(memory.get(), 100), Bytes(100, std::byte{0x11}));
}

kernels::ConvertArgs ToHalf(const void* src, void* dst, std::size_t n) {
  return {.src = src,
          .src_type = kernels::DType::kFloat32,
          .dst = dst,
          .dst_type = kernels::DType::kFloat16,
          .settled = nullptr,
          .n = n,
          .scale = 0.5F,
          .nonfinite = nullptr};
}

TEST_P(DeviceTest, KernelsSeeEarlierCopiesAndLaterCopiesSeeThem) {
  const std::size_t n = 10007;
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) {
    values[i] = (static_cast<float>(i * 7919 % n) - 5000.0F) / 33;
  }
  Bytes expected(n * 2);
  ASSERT_EQ(kernels::CpuKernels().convert(
                ToHalf(values.data(), expected.data(), n), nullptr),
            0);
  Bytes data(n * sizeof(float));
  std::memcpy(data.data(), values.data(), data.size());

  const DeviceMemory from = Pin(data);
  const DeviceMemory floats = Allocate(n * 4);
  const DeviceMemory halves = Allocate(n * 2);
  const DeviceMemory back = AllocatePinned(n * 2);
  const auto stream = NewStream();
  IsOk(stream->Copy(floats.get(), from.get(), n * 4));
  EXPECT_EQ(device_->kernels().convert(ToHalf(floats.get(), halves.get(), n),
                                       stream->native()),
            0);
  IsOk(stream->Copy(back.get(), halves.get(), n * 2));
  IsOk(stream->Synchronize());
  EXPECT_EQ(Bytes(back.get(), back.get() + n * 2), expected);
}

TEST_P(DeviceTest, KernelsRefuseBadTypesAtOnce) {
  const DeviceMemory memory = Allocate(100);
  const auto stream = NewStream();
  kernels::ConvertArgs args = ToHalf(memory.get(), memory.get() + 64, 8);
  args.dst_type = kernels::DType::kInt32;
  EXPECT_EQ(device_->kernels().convert(args, stream->native()), EINVAL);
  kernels::ChunkRescaleArgs rescale = {
      .range = {.elements = 10, .chunk_elements = 3, .first = 2, .count = 3},
      .residual = reinterpret_cast<float*>(memory.get()),
      .factor = 2};
  EXPECT_EQ(device_->chunk_kernels().chunk_rescale(rescale, stream->native()),
            EINVAL);
  IsOk(stream->Synchronize());
  EXPECT_EQ(Download(memory.get(), 100), Bytes(100));
}

TEST_P(DeviceTest, ThreadsUseStreamsOfTheirOwn) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      const auto stream = NewStream(t % 2 == 0);
      const auto event = NewEvent();
      for (int round = 0; round < 20; ++round) {
        const Bytes data = RandomBytes(t * 100 + round, 1000 + round);
        const DeviceMemory memory = Upload(data);
        IsOk(stream->Record(event.get()));
        IsOk(event->Query());
        EXPECT_EQ(Download(memory.get(), data.size()), data);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gradientflow::testing
