#include <memory>
#include <string>

#include "tests/device/device_conformance.h"
#include "tests/device/fake_device.h"

// The fake device is a Device, however far its streams lag.
namespace gradientflow::testing {
namespace {

DeviceKind Fake(const std::string& name, FakeLag lag, std::uint64_t seed) {
  const FakeOptions options = {
      .memory_bytes = std::size_t{1} << 40, .lag = lag, .seed = seed};
  return {name, [=] { return std::make_unique<FakeDevice>(options); },
          [](Device* device, Stream* stream) {
            return static_cast<FakeDevice*>(device)->HoldStream(stream);
          }};
}

INSTANTIATE_TEST_SUITE_P(Fake, DeviceTest,
                         ::testing::Values(Fake("prompt", FakeLag::kNone, 1),
                                           Fake("slow1", FakeLag::kRandom, 1),
                                           Fake("slow2", FakeLag::kRandom, 2),
                                           Fake("lazy", FakeLag::kLazy, 1)),
                         KindName);

}  // namespace
}  // namespace gradientflow::testing
