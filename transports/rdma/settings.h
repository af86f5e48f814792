#pragma once

#include <span>
#include <string>

#include "gradientflow/base/status.h"
#include "transports/endpoint.h"

namespace gradientflow {

// The settings of RDMA alone; rows in settings.cc say what they mean. Ranks may
// differ in all of them.
struct RdmaSettings {
  std::string devices;
  int ports = 0;  // 1 to kMostRails.
  int traffic_class = 0;
  double retry_seconds = 0;
};

// The rows, for TransportKind::settings. Static storage.
std::span<const TransportSetting> RdmaSettingRows();

// Returns kInvalidArgument, with what was expected, if a text is not valid.
Result<RdmaSettings> RdmaSettingsOf(const TransportOptions& options);

}  // namespace gradientflow
