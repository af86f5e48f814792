#include "gradientflow/observe/host_facts.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

// Empty for other address families.
std::string Numeric(const sockaddr& address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  const void* bits = nullptr;
  if (address.sa_family == AF_INET) {
    bits = &reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  } else if (address.sa_family == AF_INET6) {
    bits = &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  } else {
    return "";
  }
  const char* result = ::inet_ntop(address.sa_family, bits, text.data(),
                                   static_cast<socklen_t>(text.size()));
  return result == nullptr ? "" : result;
}

NetworkInterface& Named(std::vector<NetworkInterface>* all,
                        std::string_view name) {
  const auto found = std::find_if(
      all->begin(), all->end(), [&](const auto& i) { return i.name == name; });
  if (found != all->end()) return *found;
  all->emplace_back().name = name;
  return all->back();
}

Status Failure(std::string_view what, int error) {
  return Status(StatusCode::kUnimplemented,
                StrCat(what, ": ", std::system_category().message(error)));
}

Status ProbeMapping(int fd, std::size_t bytes) {
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    return Failure("ftruncate", errno);
  }
  void* map = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) return Failure("mmap", errno);
  *static_cast<volatile char*>(map) = 1;
  ::munmap(map, bytes);
  return Status();
}

}  // namespace

std::vector<NetworkInterface> ListNetworkInterfaces() {
  std::vector<NetworkInterface> all;
  ifaddrs* head = nullptr;
  if (::getifaddrs(&head) != 0) return all;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(head, ::freeifaddrs);
  for (const ifaddrs* entry = head; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0)
      continue;
    std::string address = Numeric(*entry->ifa_addr);
    if (address.empty()) continue;
    NetworkInterface& interface = Named(&all, entry->ifa_name);
    interface.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    interface.addresses.push_back(std::move(address));
  }
  return all;
}

Status ProbeSharedMemory() {
  const int fd = ::memfd_create("gradientflow-probe", MFD_CLOEXEC);
  if (fd < 0) return Failure("memfd_create", errno);
  Status status = ProbeMapping(fd, 4096);
  ::close(fd);
  return status;
}

}  // namespace gradientflow
