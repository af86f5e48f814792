#pragma once

#include <span>
#include <string_view>

#include "transports/endpoint.h"

namespace gradientflow {

inline constexpr TransportSetting kTcpCongestion = {
    "tcp_congestion", "a name of at most 15 characters, or nothing",
    "TCP's congestion control for the connections that carry gradients: one of "
    "those in net.ipv4.tcp_available_congestion_control. Without the right "
    "CAP_NET_ADMIN it has to be in net.ipv4.tcp_allowed_congestion_control, "
    "too. Under bbr short exchanges on slow links take longer. If empty, the "
    "system's. Ranks may differ.",
    "", [](std::string_view text) { return text.size() < 16; }};

// The rows, for TransportKind::settings. Static storage.
inline std::span<const TransportSetting> TcpSettingRows() {
  return {&kTcpCongestion, 1};
}

}  // namespace gradientflow
