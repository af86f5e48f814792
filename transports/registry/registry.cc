#include "transports/registry/registry.h"

#include <string>

#include "transports/rdma/create.h"
#include "transports/shm/create.h"
#include "transports/tcp/create.h"

namespace gradientflow {
namespace {

constexpr const TransportKind* kTransports[] = {
    &kShmTransport,
    &kRdmaTransport,
    &kTcpTransport,
};

}  // namespace

std::span<const TransportKind* const> Transports() { return kTransports; }

const TransportKind* FindTransport(std::string_view name) {
  for (const TransportKind* kind : kTransports) {
    if (name == kind->name) return kind;
  }
  return nullptr;
}

std::string_view TransportNames() {
  static const std::string names = [] {
    std::string text = "auto";
    for (const TransportKind* kind : kTransports) {
      text += kind == Transports().back() ? " or " : ", ";
      text += kind->name;
    }
    return text;
  }();
  return names;
}

std::string HostId(const std::string& setting) {
  if (!setting.empty()) return setting;
  for (const TransportKind* kind : kTransports) {
    if (kind->host_id != nullptr) return kind->host_id();
  }
  return {};
}

}  // namespace gradientflow
