#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "gradientflow/device/device.h"

// What every Device must do. A test of an implementation links this library and
// contains
//   INSTANTIATE_TEST_SUITE_P(Mine, DeviceTest, testing::Values(kind),
//                            KindName);
namespace gradientflow::testing {

struct DeviceKind {
  std::string name;
  // Never null: a test that has no device does not instantiate.
  std::function<std::unique_ptr<Device>()> open;
  // Keeps the stream from starting what is submitted from here on, until the
  // result is called, from any thread. Memory is allocated and freed only while
  // no stream is held, since a device may stop for that.
  std::function<std::function<void()>(Device*, Stream*)> hold;
};

inline void PrintTo(const DeviceKind& kind, std::ostream* out) {
  *out << kind.name;
}
inline std::string KindName(const ::testing::TestParamInfo<DeviceKind>& info) {
  return info.param.name;
}

// Bytes that depend on seed and place, so that any shift or mix-up is noticed.
std::vector<std::byte> RandomBytes(std::uint64_t seed, std::size_t bytes);

class DeviceTest : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override;

  std::unique_ptr<Stream> NewStream(bool urgent = false);
  std::unique_ptr<Event> NewEvent();
  DeviceMemory Allocate(std::size_t bytes);
  DeviceMemory AllocatePinned(std::size_t bytes);
  // Device memory, and pinned memory, with these bytes.
  DeviceMemory Upload(const std::vector<std::byte>& bytes);
  DeviceMemory Pin(const std::vector<std::byte>& bytes);
  // The contents of device memory, read with a separate stream.
  std::vector<std::byte> Download(const std::byte* data, std::size_t bytes);
  std::function<void()> Hold(Stream* stream) {
    return GetParam().hold(device_.get(), stream);
  }

  std::unique_ptr<Device> device_;
};

// Expects that `status_or_result` is OK, and prints why it is not.
template <class T>
bool IsOk(const Result<T>& result) {
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  return result.ok();
}
inline bool IsOk(const Status& status) {
  EXPECT_TRUE(status.ok()) << status.ToString();
  return status.ok();
}

}  // namespace gradientflow::testing
