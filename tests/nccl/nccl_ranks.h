#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "gradientflow/base/status.h"
#include "gradientflow/nccl/create.h"
#include "tests/device/fake_device.h"
#include "tests/kernels/oracle.h"
#include "tests/nccl/fake_nccl.h"

// NCCL collectives between threads, over libfake_nccl.so and FakeDevices.
namespace gradientflow::testing {

// Where the libraries are, relative to the folder in which tests run.
inline constexpr char kFakeNcclPath[] = "./tests/nccl/libfake_nccl.so";
inline constexpr char kNoRegisterPath[] =
    "./tests/nccl/libfake_nccl_without_register.so";
inline constexpr char kNoGroupEndPath[] =
    "./tests/nccl/libfake_nccl_without_group_end.so";

// One of the libraries, loaded and reset.
class FakeNccl {
 public:
  explicit FakeNccl(const char* path = kFakeNcclPath);
  ~FakeNccl();  // Ends everything that hangs.
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  void Set(FakeNcclMode mode, int value) { set_(mode, value); }
  int Get(FakeNcclCount count) const { return get_(count); }
  // Yields until the count is `value`.
  void Await(FakeNcclCount count, int value) const;
  const std::shared_ptr<const NcclApi>& api() const { return api_; }

 private:
  FakeNcclReset* reset_ = nullptr;
  FakeNcclSet* set_ = nullptr;
  FakeNcclGet* get_ = nullptr;
  std::shared_ptr<const NcclApi> api_;
};

// ncclMemAlloc finds the device, by its number, as long as this exists. Without
// it has no memory to give.
class DeviceForNccl {
 public:
  explicit DeviceForNccl(FakeDevice* device);
  ~DeviceForNccl();
  DeviceForNccl(const DeviceForNccl&) = delete;
  DeviceForNccl& operator=(const DeviceForNccl&) = delete;

 private:
  const int number_;
};

// How a call ended.
struct Outcome {
  bool ended = false;
  Status status;
  std::uint32_t flags = 0;

  Done done() {
    return {
        [](void* self, std::uint64_t, std::uint32_t found, const Status& how) {
          auto& outcome = *static_cast<Outcome*>(self);
          EXPECT_FALSE(outcome.ended) << "done twice";
          outcome = {true, how, found};
        },
        this, 0};
  }
};

// What the body of a rank's thread receives.
struct NcclRank {
  int rank;
  FakeDevice& device;
  NcclCollective& collective;

  // Starts the call and polls until it has ended.
  Outcome Run(const CollectiveCall& call);
  void PollUntil(const Outcome& outcome);

  // Device memory with the elements of `from`.
  DeviceMemory Upload(const kernels::testing::Elements& from) const;
  static void Download(const DeviceMemory& from,
                       kernels::testing::Elements* to);
};

struct NcclJob {
  FakeNccl* nccl = nullptr;
  int size = 1;
  FakeLag lag = FakeLag::kRandom;
  // Changes the arguments of Create(), including the device.
  std::function<void(int rank, NcclArgs* args)> adjust;
};

// Runs `body` for every rank on a thread of its own; requires every Create() to
// succeed.
void RunNcclRanks(const NcclJob& job,
                  const std::function<void(NcclRank&)>& body);

// The same, but `body` receives the result of Create().
void CreateNcclRanks(
    const NcclJob& job,
    const std::function<void(int rank, FakeDevice& device,
                             Result<std::unique_ptr<NcclCollective>> made)>&
        body);

}  // namespace gradientflow::testing
