#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "tests/device/fake_device.h"
#include "tests/rdma/fake_verbs.h"
#include "transports/rdma/card_memory.h"
#include "transports/remote_places.h"

// Memory of accelerators that the card is to reach: in which order the ways are
// tried, what is said of each that does not work, and what is left.
namespace gradientflow::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t kBytes = 100'000;

FakeOptions Exporting(bool dma_buf) {
  FakeOptions options;
  options.dma_buf = dma_buf;
  return options;
}

class DeviceRegistrations : public ::testing::Test {
 protected:
  // A card beside an accelerator.
  void Open(bool dma_buf, bool peermem) {
    gpu_ = std::make_unique<FakeDevice>(Exporting(dma_buf));
    memory_ = gpu_->Allocate(kBytes).value();
    FakeHost host = UsualHost(0);
    host.of_gpu = [this](const void* at) { return gpu_->Owns(at); };
    host.peermem = peermem;
    fake_.AddHost(host);
    verbs_ = *fake_.api(0);
    int count = 0;
    ibv_device** const list = verbs_.get_device_list(&count);
    ASSERT_EQ(count, 1);
    context_ = verbs_.open_device(list[0]);
    verbs_.free_device_list(list);
    pd_ = verbs_.alloc_pd(context_);
  }
  void TearDown() override {
    EXPECT_EQ(verbs_.dealloc_pd(pd_), 0) << "something is still registered";
    EXPECT_EQ(verbs_.close_device(context_), 0);
  }
  // As whoever has the memory asks for it.
  Result<std::string> Attach(CardReach* reach) {
    const auto exported = gpu_->ExportDmaBuf(memory_.get(), kBytes);
    DeviceBuffer buffer;
    buffer.memory = {memory_.get(), kBytes, gpu_->id()};
    if (exported.ok()) {
      buffer.dma_buf = exported.value().fd.get();
      buffer.offset = exported.value().offset;
    } else {
      buffer.no_dma_buf = exported.status().message();
    }
    return reach->AddDevice(verbs_, pd_, buffer);
  }
  std::string WhyNot() {
    CardReach reach;
    const auto way = Attach(&reach);
    EXPECT_EQ(way.status().code(), StatusCode::kUnavailable);
    EXPECT_EQ(reach.Find(memory_.get(), 1), nullptr);
    EXPECT_EQ(fake_.stats(0).registered_bytes, 0U);
    return way.status().message();
  }

  FakeVerbs fake_{0};
  std::unique_ptr<FakeDevice> gpu_;
  DeviceMemory memory_;
  VerbsApi verbs_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
};

TEST_F(DeviceRegistrations, DmaBufComesFirst) {
  Open(/*dma_buf=*/true, /*peermem=*/true);
  // It would fail, if it were tried.
  fake_.FailCall(0, "reg_mr", 1, EFAULT);
  {
    CardReach reach;
    const auto way = Attach(&reach);
    ASSERT_TRUE(way.ok()) << way.status().ToString();
    EXPECT_EQ(way.value(), "dma-buf");
    const Registration* const all = reach.Find(memory_.get(), kBytes);
    ASSERT_NE(all, nullptr);
    EXPECT_EQ(all->data(), memory_.get()) << "named by the device's addresses";
    EXPECT_EQ(reach.Find(memory_.get(), kBytes + 1), nullptr);
    EXPECT_EQ(fake_.stats(0).registered_bytes, kBytes);
  }
  EXPECT_EQ(fake_.stats(0).registered_bytes, 0U);
  EXPECT_TRUE(fake_.ForgetFaults(0)) << "the other way was not tried";
}

// What makes the card's writes visible to the device knows of no order but
// theirs, and nobody may read or do atomics.
TEST_F(DeviceRegistrations, RightsAreTheLeastThatWork) {
  Open(true, true);
  CardReach reach;
  ASSERT_TRUE(Attach(&reach).ok());
  EXPECT_EQ(
      fake_.stats(0).access_granted,
      static_cast<unsigned>(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
}

TEST_F(DeviceRegistrations, PeermemIsTheSecondWay) {
  Open(/*dma_buf=*/false, /*peermem=*/true);
  CardReach reach;
  EXPECT_EQ(Attach(&reach).value(), "nvidia-peermem");
  EXPECT_NE(reach.Find(memory_.get(), kBytes), nullptr);
  EXPECT_EQ(
      fake_.stats(0).access_granted,
      static_cast<unsigned>(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
}

TEST_F(DeviceRegistrations, ADmaBufThatIsRefusedLeavesPeermem) {
  Open(true, true);
  for (const int error : {EOPNOTSUPP, EFAULT, ENOMEM, EINVAL}) {
    fake_.FailCall(0, "reg_dmabuf_mr", 1, error);
    CardReach reach;
    EXPECT_EQ(Attach(&reach).value(), "nvidia-peermem") << error;
  }
  verbs_.reg_dmabuf_mr = nullptr;
  CardReach reach;
  EXPECT_EQ(Attach(&reach).value(), "nvidia-peermem");
}

TEST_F(DeviceRegistrations, EachRefusalIsSaidWithItsRemedy) {
  Open(/*dma_buf=*/true, /*peermem=*/false);
  const struct {
    int error;
    const char* text;
  } kRefusals[] = {
      {EOPNOTSUPP,
       "by dma-buf: Operation not supported; the kernel needs to be"
       " 5.12 or newer"},
      {ENOMEM,
       "by dma-buf: Cannot allocate memory; the window of the GPU "
       "(BAR1"},
      {EINVAL, "by dma-buf: Invalid argument; by nvidia-peermem: "},
  };
  for (const auto& refusal : kRefusals) {
    fake_.FailCall(0, "reg_dmabuf_mr", 1, refusal.error);
    EXPECT_THAT(WhyNot(),
                AllOf(HasSubstr("cannot register 100000 bytes of a GPU for "
                                "RDMA: "),
                      HasSubstr(refusal.text),
                      HasSubstr("by nvidia-peermem: Bad address; the kernel "
                                "does not know the address: modprobe "
                                "nvidia-peermem")));
  }
  verbs_.reg_dmabuf_mr = nullptr;
  EXPECT_THAT(WhyNot(), HasSubstr("by dma-buf: libibverbs is older than "
                                  "rdma-core 34; by nvidia-peermem: "));
}

TEST_F(DeviceRegistrations, WhatTheDeviceSaysOfItsExportIsPassedOn) {
  Open(/*dma_buf=*/false, /*peermem=*/false);
  EXPECT_THAT(WhyNot(), HasSubstr("by dma-buf: fake:0 exports no dma-buf; by "
                                  "nvidia-peermem: Bad address"));
}

TEST_F(DeviceRegistrations, NoMemoryByPeermemNamesTheLimit) {
  Open(/*dma_buf=*/false, /*peermem=*/true);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit low = {65536, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &low), 0);
  fake_.FailCall(0, "reg_mr", 1, ENOMEM);
  EXPECT_THAT(WhyNot(),
              AllOf(HasSubstr("by nvidia-peermem: Cannot allocate memory; the "
                              "window of the GPU (BAR1"),
                    HasSubstr("ulimit -l unlimited")));
  fake_.FailCall(0, "reg_mr", 1, EACCES);
  EXPECT_THAT(WhyNot(), AllOf(HasSubstr("by nvidia-peermem: Permission denied"),
                              Not(HasSubstr("modprobe"))));
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

}  // namespace
}  // namespace gradientflow::testing
