#include "gradientflow/observe/host_facts.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace gradientflow {
namespace {

TEST(HostFacts, ListsEachInterfaceOnceWithItsAddresses) {
  std::set<std::string> names;
  for (const NetworkInterface& interface : ListNetworkInterfaces()) {
    EXPECT_TRUE(names.insert(interface.name).second) << interface.name;
    ASSERT_FALSE(interface.addresses.empty()) << interface.name;
    for (const std::string& address : interface.addresses) {
      const bool local = address.rfind("127.", 0) == 0 || address == "::1";
      EXPECT_TRUE(interface.loopback || !local) << interface.name;
    }
  }
}

TEST(HostFacts, SharedMemoryIsThereWhereTheTestsRun) {
  const Status status = ProbeSharedMemory();
  EXPECT_TRUE(status.ok()) << status.message();
}

}  // namespace
}  // namespace gradientflow
