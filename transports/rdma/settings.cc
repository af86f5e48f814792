#include "transports/rdma/settings.h"

#include <string_view>

#include "gradientflow/base/numbers.h"
#include "transports/remote_places.h"

namespace gradientflow {
namespace {

constexpr double kMostSeconds = 1e9;

bool AnyText(std::string_view) { return true; }
bool IsPorts(std::string_view text) {
  const int ports = ParseNumber<int>(text).value_or(0);
  return ports >= 1 && ports <= int{kMostRails};
}
bool IsTrafficClass(std::string_view text) {
  const int value = ParseNumber<int>(text).value_or(-1);
  return value >= 0 && value <= 255;
}
bool IsTime(std::string_view text) {
  const double seconds = ParseFinite<double>(text).value_or(0);
  return seconds > 0 && seconds <= kMostSeconds;
}

constexpr TransportSetting kDevices = {
    "rdma_devices", "prefixes of ports: mlx5_0:1 or ^mlx5_bond",
    "RDMA ports that this rank may use; a leading ^ excludes the listed ones. "
    "If empty, a port whose address is one by which peers reach this rank, the "
    "fastest first; ranks take equal ones in turn. Ranks may differ.",
    "", &AnyText};
constexpr TransportSetting kPorts = {
    "rdma_ports", "an integer from 1 to 4",
    "How many RDMA ports this rank may use at the same time, if it finds that "
    "many alike. Messages are divided among them by speed. Each port takes 8 "
    "MB more memory, and registers the gradients once more. If one of two "
    "ranks has fewer ports than the other, they use that many; in the order of "
    "addresses, the first port of one talks to the first of the other, and so "
    "on. Ranks may differ.",
    "1", &IsPorts};
static_assert(kMostRails == 4, "as the text says");
constexpr TransportSetting kTrafficClass = {
    "rdma_traffic_class", "an integer from 0 to 255",
    "The traffic class of RDMA packets. A network that must not drop them "
    "recognises them by it; ask whoever runs the network. Ranks may differ.",
    "0", &IsTrafficClass};
constexpr TransportSetting kRetrySeconds = {
    "rdma_retry_seconds", "seconds, more than 0, at most 1e9",
    "How long a network card resends what its peer does not acknowledge, "
    "before the job ends. A longer time survives a cable that is unplugged for "
    "a moment. A shorter one finds losses sooner, and repairs them faster if "
    "the network drops packets. Ranks may differ.",
    "4", &IsTime};

constexpr TransportSetting kRows[] = {kDevices, kPorts, kTrafficClass,
                                      kRetrySeconds};

}  // namespace

std::span<const TransportSetting> RdmaSettingRows() { return kRows; }

Result<RdmaSettings> RdmaSettingsOf(const TransportOptions& options) {
  for (const TransportSetting& row : kRows) {
    GF_RETURN_IF_ERROR(options.CheckOwn(row));
  }
  RdmaSettings settings;
  settings.devices = options.Own(kDevices);
  settings.ports = *ParseNumber<int>(options.Own(kPorts));
  settings.traffic_class = *ParseNumber<int>(options.Own(kTrafficClass));
  settings.retry_seconds = *ParseFinite<double>(options.Own(kRetrySeconds));
  return settings;
}

}  // namespace gradientflow
