#include "tests/device/device_conformance.h"

#include <cstring>
#include <random>
#include <utility>

namespace gradientflow::testing {

// The programs that link this library instantiate the suites.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceTest);

std::vector<std::byte> RandomBytes(std::uint64_t seed, std::size_t bytes) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> out(bytes);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random() >> 56);
  return out;
}

void DeviceTest::SetUp() {
  device_ = GetParam().open();
  ASSERT_NE(device_, nullptr);
}

std::unique_ptr<Stream> DeviceTest::NewStream(bool urgent) {
  auto stream = device_->NewStream(urgent);
  return IsOk(stream) ? std::move(stream).value() : nullptr;
}

std::unique_ptr<Event> DeviceTest::NewEvent() {
  auto event = device_->NewEvent();
  return IsOk(event) ? std::move(event).value() : nullptr;
}

DeviceMemory DeviceTest::Allocate(std::size_t bytes) {
  auto memory = device_->Allocate(bytes);
  return IsOk(memory) ? std::move(memory).value() : nullptr;
}

DeviceMemory DeviceTest::AllocatePinned(std::size_t bytes) {
  auto memory = device_->AllocatePinned(bytes);
  return IsOk(memory) ? std::move(memory).value() : nullptr;
}

DeviceMemory DeviceTest::Pin(const std::vector<std::byte>& bytes) {
  DeviceMemory pinned = AllocatePinned(bytes.size());
  if (!bytes.empty()) std::memcpy(pinned.get(), bytes.data(), bytes.size());
  return pinned;
}

DeviceMemory DeviceTest::Upload(const std::vector<std::byte>& bytes) {
  const DeviceMemory pinned = Pin(bytes);
  DeviceMemory memory = Allocate(bytes.size());
  const auto stream = NewStream();
  IsOk(stream->Copy(memory.get(), pinned.get(), bytes.size()));
  IsOk(stream->Synchronize());
  return memory;
}

std::vector<std::byte> DeviceTest::Download(const std::byte* data,
                                            std::size_t bytes) {
  const DeviceMemory pinned = AllocatePinned(bytes);
  const auto stream = NewStream();
  IsOk(stream->Copy(pinned.get(), data, bytes));
  IsOk(stream->Synchronize());
  return {pinned.get(), pinned.get() + bytes};
}

}  // namespace gradientflow::testing
