#include "tests/device/fake_device.h"
#include "tests/gpu/session_device.h"

namespace gradientflow::testing {

std::shared_ptr<Device> OpenTestDevice(int rank) {
  FakeOptions options;
  options.id.index = rank;
  options.lag = FakeLag::kRandom;
  return std::make_shared<FakeDevice>(options);
}

}  // namespace gradientflow::testing
