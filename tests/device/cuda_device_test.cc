#include "gradientflow/device/cuda_device.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "gradientflow/device/cuda_facts.h"
#include "tests/device/device_conformance.h"
#include "tests/device/fake_cudart.h"
#include "tests/device/fake_cudart_world.h"

// The CUDA device on a machine without a GPU, with a fake runtime: which calls
// it makes, for which device, and how it handles their errors.
namespace gradientflow::testing {
namespace {

std::unique_ptr<Device> Open(int index) {
  auto device = OpenCudaDevice(index);
  return IsOk(device) ? std::move(device).value() : nullptr;
}

// The test's thread has device 0, or none; the device under test is 1.
DeviceKind Cuda(const std::string& name, int current) {
  return {name,
          [current] {
            FakeCudart::set_current(current);
            return Open(1);
          },
          [](Device*, Stream* stream) {
            auto* native = static_cast<cudaStream_t>(stream->native());
            return FakeCudart::device(1).HoldStream(Of(native)->stream.get());
          }};
}

INSTANTIATE_TEST_SUITE_P(CudaOnFakes, DeviceTest,
                         ::testing::Values(Cuda("none_current", -1),
                                           Cuda("other_current", 0),
                                           Cuda("own_current", 1)),
                         KindName);

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Calls everything, and runs `check` after each call.
template <class Check>
void CallEverything(Device* device, Check check) {
  const auto memory = device->Allocate(100).value();
  check("Allocate");
  const auto pinned = device->AllocatePinned(100).value();
  check("AllocatePinned");
  std::string host(5000, 'x');
  {
    const auto lock = device->RegisterHost(host.data(), 5000).value();
    check("RegisterHost");
  }
  check("unregister");
  auto stream = device->NewStream(true).value();
  check("NewStream");
  auto event = device->NewEvent().value();
  check("NewEvent");
  IsOk(stream->Copy(memory.get(), pinned.get(), 100));
  check("Copy");
  IsOk(stream->Fill(memory.get(), 1, 100));
  check("Fill");
  IsOk(stream->Record(event.get()));
  check("Record");
  IsOk(stream->Wait(*event));
  check("Wait");
  IsOk(event->Query());
  check("Query");
  IsOk(event->Synchronize());
  check("Event::Synchronize");
  const kernels::ChunkRescaleArgs args = {
      .range = {.elements = 7, .chunk_elements = 7, .first = 0, .count = 1},
      .residual = reinterpret_cast<float*>(memory.get()),
      .factor = 2};
  EXPECT_EQ(device->chunk_kernels().chunk_rescale(args, stream->native()), 0);
  check("chunk_rescale");
  IsOk(stream->Synchronize());
  check("Stream::Synchronize");
  EXPECT_EQ(device->chunk_kernels().chunk_rescale(args, nullptr), 0);
  check("chunk_rescale on the default stream");
  IsOk(device->Wrap(nullptr)->Synchronize());
  check("Wrap");
  EXPECT_TRUE(device->Owns(memory.get()));
  check("Owns");
  IsOk(device->ExportDmaBuf(memory.get(), 100));
  check("ExportDmaBuf");
  IsOk(device->FlushRemoteWrites());
  check("FlushRemoteWrites");
  stream.reset();
  check("~Stream");
  event.reset();
  check("~Event");
}

TEST(CudaDeviceTest, NoCallChangesTheThreadsDevice) {
  for (const int current : {-1, 0, 1}) {
    FakeCudart::set_current(current);
    const auto device = Open(1);
    EXPECT_EQ(FakeCudart::current(), current);
    CallEverything(device.get(), [&](const char* what) {
      EXPECT_EQ(FakeCudart::current(), current) << what;
    });
  }
}

// As PyTorch captures graphs by default, while our threads go on.
TEST(CudaDeviceTest, NoCallMindsACaptureOrEndsIt) {
  FakeCudart::set_current(0);
  const auto device = Open(1);
  const auto captured = device->NewStream(false).value();
  FakeCudart::BeginCapture(static_cast<cudaStream_t>(captured->native()));
  CallEverything(device.get(), [&](const char* what) {
    EXPECT_TRUE(FakeCudart::minds_captures()) << what;
  });
  EXPECT_TRUE(FakeCudart::EndCapture());
}

// What it is given would not run now, but whenever the graph is launched.
TEST(CudaDeviceTest, AStreamThatIsCapturedIsRefused) {
  FakeCudart::set_current(-1);
  const auto device = Open(1);
  const auto owner = device->NewStream(false).value();
  auto* const native = static_cast<cudaStream_t>(owner->native());
  const auto stream = device->Wrap(native);
  const auto event = device->NewEvent().value();
  const auto memory = device->Allocate(200).value();
  const auto expect = [](const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_TRUE(Has(status.message(), "CUDA graph")) << status.ToString();
  };
  FakeCudart::BeginCapture(native);
  expect(stream->Record(event.get()));
  expect(stream->Wait(*event));
  expect(stream->Fill(memory.get(), 1, 100));
  expect(stream->Copy(memory.get(), memory.get() + 100, 100));
  EXPECT_TRUE(FakeCudart::EndCapture());
  IsOk(stream->Record(event.get()));
}

TEST(CudaDeviceTest, TheSetterAloneMakesTheDeviceCurrentForGood) {
  FakeCudart::set_current(-1);
  const std::function<void()> make_current = Open(1)->CurrentSetter();
  EXPECT_EQ(FakeCudart::current(), -1);
  make_current();
  EXPECT_EQ(FakeCudart::current(), 1);
}

TEST(CudaDeviceTest, OtherDevicesAreNotStarted) {
  FakeCudart::set_current(-1);
  std::set<int> expected = FakeCudart::started();
  expected.insert(1);
  const auto device = Open(1);
  CallEverything(device.get(), [](const char*) {});
  EXPECT_EQ(FakeCudart::started(), expected);
}

TEST(CudaDeviceTest, EveryCallsErrorIsAStatusAndNotLeftBehind) {
  FakeCudart::set_current(-1);
  const auto device = Open(1);
  const auto stream = device->NewStream(false).value();
  const auto event = device->NewEvent().value();
  const auto memory = device->Allocate(100).value();
  const auto pinned = device->AllocatePinned(100).value();
  const auto expect = [&](const char* function, auto call) {
    FakeCudart::Fail(function, cudaErrorUnknown);
    const Status status = call();
    EXPECT_EQ(status.code(), StatusCode::kInternal) << function;
    for (const char* part : {function, "cuda:1: ", "another error",
                             "cudaErrorOther", "gradientflow/device/cuda_"}) {
      EXPECT_TRUE(Has(status.message(), part)) << status.message();
    }
    EXPECT_EQ(FakeCudart::TakeLastError(), cudaSuccess) << function;
    EXPECT_EQ(FakeCudart::current(), -1) << function;
  };
  expect("cudaMalloc", [&] { return device->Allocate(8).status(); });
  expect("cudaMemsetAsync", [&] { return device->Allocate(8).status(); });
  expect("cudaHostAlloc", [&] { return device->AllocatePinned(8).status(); });
  expect("cudaHostRegister",
         [&] { return device->RegisterHost(pinned.get(), 8).status(); });
  expect("cudaStreamCreateWithPriority",
         [&] { return device->NewStream(true).status(); });
  expect("cudaEventCreateWithFlags",
         [&] { return device->NewEvent().status(); });
  expect("cudaMemcpyAsync",
         [&] { return stream->Copy(memory.get(), pinned.get(), 8); });
  expect("cudaMemsetAsync", [&] { return stream->Fill(memory.get(), 1, 8); });
  expect("cudaEventRecord", [&] { return stream->Record(event.get()); });
  expect("cudaStreamWaitEvent", [&] { return stream->Wait(*event); });
  expect("cudaStreamSynchronize", [&] { return stream->Synchronize(); });
  expect("cudaEventQuery", [&] { return event->Query().status(); });
  expect("cudaEventSynchronize", [&] { return event->Synchronize(); });
  expect("cuCtxSetCurrent", [&] { return stream->Synchronize(); });

  FakeCudart::Fail("cudaPointerGetAttributes", cudaErrorUnknown);
  EXPECT_FALSE(device->Owns(memory.get()));
  EXPECT_EQ(FakeCudart::TakeLastError(), cudaSuccess);
  FakeCudart::Fail("launch", cudaErrorUnknown);
  const kernels::ChunkRescaleArgs args = {
      .range = {.elements = 7, .chunk_elements = 7, .first = 0, .count = 1},
      .residual = reinterpret_cast<float*>(memory.get()),
      .factor = 2};
  EXPECT_EQ(device->chunk_kernels().chunk_rescale(args, stream->native()),
            cudaErrorUnknown);
  EXPECT_EQ(FakeCudart::TakeLastError(), cudaSuccess);
}

TEST(CudaDeviceTest, AnEventThatIsNotDoneLeavesNoError) {
  FakeCudart::set_current(-1);
  const auto device = Open(0);
  const auto stream = device->NewStream(false).value();
  const auto event = device->NewEvent().value();
  FakeCudart::device(0).HoldStreams();
  IsOk(stream->Record(event.get()));
  EXPECT_FALSE(event->Query().value());
  EXPECT_EQ(FakeCudart::TakeLastError(), cudaSuccess);
  FakeCudart::device(0).ReleaseStreams();
}

TEST(CudaDeviceTest, TheCallersOwnErrorIsLeftToTheCaller) {
  FakeCudart::set_current(-1);
  const auto device = Open(0);
  const auto stream = device->NewStream(false).value();
  const auto event = device->NewEvent().value();
  FakeCudart::device(0).HoldStreams();
  IsOk(stream->Record(event.get()));
  FakeCudart::LeaveLastError(cudaErrorInvalidValue);
  EXPECT_FALSE(event->Query().value());
  EXPECT_EQ(FakeCudart::TakeLastError(), cudaErrorInvalidValue);
  FakeCudart::device(0).ReleaseStreams();

  int any = 0;
  FakeCudart::LeaveLastError(cudaErrorInvalidValue);
  FakeCudart::Fail("cuCtxSetCurrent", cudaErrorUnknown);
  EXPECT_FALSE(device->Owns(&any));
  EXPECT_EQ(FakeCudart::TakeLastError(), cudaErrorInvalidValue);
}

TEST(CudaDeviceTest, AKernelsErrorIsAStatus) {
  const auto device = Open(1);
  IsOk(device->KernelStatus("top_k", 0));
  const auto expect = [&](int error, StatusCode code, const char* text) {
    const Status status = device->KernelStatus("top_k", error);
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_TRUE(Has(status.message(), "cuda:1: kernel top_k"));
    EXPECT_TRUE(Has(status.message(), text)) << status.message();
  };
  expect(cudaErrorIllegalAddress, StatusCode::kUnavailable,
         "lost for this process");
  expect(cudaErrorMemoryAllocation, StatusCode::kResourceExhausted,
         "another error");
  expect(cudaErrorUnknown, StatusCode::kInternal, "another error");
  expect(EINVAL, StatusCode::kInternal, "does not take");
}

TEST(CudaDeviceTest, ALostDeviceIsSaidToBeLost) {
  FakeCudart::set_current(-1);
  const auto device = Open(0);
  const auto stream = device->NewStream(false).value();
  FakeCudart::Fail("cudaStreamSynchronize", cudaErrorIllegalAddress);
  const Status status = stream->Synchronize();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Has(status.message(), "cudaErrorIllegalAddress"));
  EXPECT_TRUE(Has(status.message(), "lost for this process"));
}

TEST(CudaDeviceTest, UrgentStreamsHaveTheHighestPriority) {
  const auto device = Open(0);
  IsOk(device->NewStream(true));
  EXPECT_EQ(FakeCudart::last_priority(), -5);
  IsOk(device->NewStream(false));
  EXPECT_EQ(FakeCudart::last_priority(), 0);
}

TEST(CudaDeviceTest, DevicesAreToldApart) {
  const auto zero = Open(0);
  const auto one = Open(1);
  EXPECT_EQ(one->description(), "cuda:1 Fake GPU");
  EXPECT_EQ(one->id().index, 1);
  EXPECT_NE(zero->unique_id(), one->unique_id());
  EXPECT_EQ(zero->unique_id(), Open(0)->unique_id());
  const auto memory = zero->Allocate(10).value();
  EXPECT_TRUE(zero->Owns(memory.get()));
  EXPECT_FALSE(one->Owns(memory.get()));
  EXPECT_NE(zero->OwnerOf(memory.get()), MemoryOwner::kOtherDevice);
  EXPECT_EQ(one->OwnerOf(memory.get()), MemoryOwner::kOtherDevice);
  EXPECT_NE(one->OwnerOf(nullptr), MemoryOwner::kOtherDevice);
  EXPECT_NE(one->OwnerOf(&memory), MemoryOwner::kOtherDevice);
  const auto event = zero->NewEvent().value();
  EXPECT_EQ(one->NewStream(false).value()->Record(event.get()).code(),
            StatusCode::kInvalidArgument);
}

// The driver exports whole pages; the offset says where the memory begins.
TEST(CudaDeviceTest, MemoryIsExportedByItsPages) {
  FakeCudart::set_current(-1);
  const auto device = Open(1);
  const auto memory = device->Allocate(20000).value();
  for (const std::size_t skip : {0, 256, 5000}) {
    const auto exported = device->ExportDmaBuf(memory.get() + skip, 300);
    ASSERT_TRUE(exported.ok()) << exported.status().ToString();
    const auto at = reinterpret_cast<std::uintptr_t>(memory.get() + skip);
    EXPECT_EQ(exported.value().offset, at % 4096);
    EXPECT_TRUE(exported.value().fd.valid());
  }
  FakeCudart::Fail("cuMemGetHandleForAddressRange", cudaErrorUnknown);
  EXPECT_EQ(device->ExportDmaBuf(memory.get(), 300).status().message(),
            "cuda:1: the driver has no cuMemGetHandleForAddressRange");
  FakeCudart::Fail("dma-buf", cudaErrorNotSupported);
  const Status refused = device->ExportDmaBuf(memory.get(), 300).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnimplemented);
  EXPECT_TRUE(Has(refused.message(),
                  "cuda:1: cuMemGetHandleForAddressRange(4096 bytes): "))
      << refused.message();
}

TEST(CudaDeviceTest, WaitsForRemoteWritesOnlyIfItMust) {
  FakeCudart::set_current(-1);
  const auto flushes = [] {
    return FakeCudart::device(0).count(FakeCall::kFlushRemoteWrites);
  };
  const std::uint64_t before = flushes();
  FakeCudart::SetRemoteWrites(cudaGPUDirectRDMAWritesOrderingNone,
                              cudaFlushGPUDirectRDMAWritesOptionHost);
  const auto unordered = Open(0);
  EXPECT_TRUE(unordered->FlushRemoteWrites().ok());
  EXPECT_EQ(flushes(), before + 1);
  FakeCudart::Fail("cudaDeviceFlushGPUDirectRDMAWrites", cudaErrorUnknown);
  EXPECT_TRUE(Has(unordered->FlushRemoteWrites().message(),
                  "cuda:0: cudaDeviceFlushGPUDirectRDMAWrites(): "));

  FakeCudart::SetRemoteWrites(cudaGPUDirectRDMAWritesOrderingOwner, 0);
  EXPECT_TRUE(Open(0)->FlushRemoteWrites().ok());
  FakeCudart::SetRemoteWrites(cudaGPUDirectRDMAWritesOrderingAllDevices, 0);
  EXPECT_TRUE(Open(0)->FlushRemoteWrites().ok());
  EXPECT_EQ(flushes(), before + 1) << "the device orders them by itself";

  FakeCudart::SetRemoteWrites(cudaGPUDirectRDMAWritesOrderingNone,
                              cudaFlushGPUDirectRDMAWritesOptionMemOps);
  EXPECT_EQ(Open(0)->FlushRemoteWrites().code(), StatusCode::kUnimplemented);
  FakeCudart::SetRemoteWrites(cudaGPUDirectRDMAWritesOrderingNone,
                              cudaFlushGPUDirectRDMAWritesOptionHost);
}

TEST(CudaDeviceTest, WhatCannotBeOpenedSaysWhy) {
  EXPECT_EQ(OpenCudaDevice(-1).status().code(), StatusCode::kInvalidArgument);
  const Status third = OpenCudaDevice(2).status();
  EXPECT_EQ(third.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Has(third.message(), "no device 2: this process has 2"))
      << third.message();

  FakeCudart::Fail("cudaFuncGetAttributes", cudaErrorUnknown);
  const Status unloaded = OpenCudaDevice(0).status();
  EXPECT_EQ(unloaded.code(), StatusCode::kInternal);
  EXPECT_TRUE(Has(unloaded.message(), "cuda:0: cudaFuncGetAttributes: "));
  EXPECT_TRUE(Has(unloaded.message(), "gradientflow/device/cuda_device.cc:"));
  EXPECT_EQ(FakeCudart::TakeLastError(), cudaSuccess);
  FakeCudart::Fail("launch", cudaErrorNoKernelImageForDevice);
  const Status old = OpenCudaDevice(0).status();
  EXPECT_EQ(old.code(), StatusCode::kUnimplemented);
  EXPECT_TRUE(Has(old.message(), "cuda: no device (device 0: "));
  EXPECT_TRUE(Has(old.message(), "first kernel on cuda:0 Fake GPU"));

  FakeCudart::SetDriver(0, 0);
  const Status none = OpenCudaDevice(0).status();
  EXPECT_EQ(none.code(), StatusCode::kUnimplemented);
  EXPECT_EQ(none.message(),
            "cuda: no device (no NVIDIA driver on this machine)");
  EXPECT_EQ(ReadCudaFacts().ToString(), none.message());
  FakeCudart::SetDriver(13000, 0);
  EXPECT_TRUE(Has(OpenCudaDevice(0).status().message(), "shows none"));
  FakeCudart::SetDriver(13000, kFakeCudaDevices);
  FakeCudart::Fail("cudaGetDeviceCount", cudaErrorInsufficientDriver);
  EXPECT_TRUE(Has(ReadCudaFacts().ToString(), "driver 13.0, runtime 13.0"));
  EXPECT_EQ(FakeCudart::TakeLastError(), cudaSuccess);
}

TEST(CudaDeviceTest, FactsNameEveryDevice) {
  FakeCudart::set_current(-1);
  FakeCudart::Fail("cudaMemGetInfo", cudaErrorUnknown);
  const CudaFacts facts = ReadCudaFacts();
  EXPECT_EQ(FakeCudart::current(), -1);
  ASSERT_EQ(facts.devices.size(), 2);
  EXPECT_TRUE(Has(facts.devices[0].problem, "cudaMemGetInfo"));
  EXPECT_TRUE(Has(facts.ToString(),
                  "cuda: 2 devices (driver 13.0, runtime 13.0); 0: Fake GPU "
                  "(9.0), cuda:0: cudaMemGetInfo(): "));
  EXPECT_TRUE(
      Has(facts.ToString(), "; 1: Fake GPU (9.0), 2.0 GiB free of 3.0 GiB"));
}

}  // namespace
}  // namespace gradientflow::testing
