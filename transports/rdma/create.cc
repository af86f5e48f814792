#include "transports/rdma/create.h"

#include <memory>

#include "transports/rdma/rdma_endpoint.h"
#include "transports/rdma/settings.h"
#include "transports/rdma/verbs_api.h"

namespace gradientflow {
namespace {

Result<std::unique_ptr<Endpoint>> Open(const TransportOptions& options) {
  const auto verbs = LoadVerbs();
  if (!verbs.ok()) return verbs.status();
  return OpenRdma(options, verbs.value());
}

}  // namespace

constinit const TransportKind kRdmaTransport = {
    .name = "rdma",
    .open = &Open,
    .settings = &RdmaSettingRows,
};

}  // namespace gradientflow
