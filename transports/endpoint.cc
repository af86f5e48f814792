#include "transports/endpoint.h"

#include <cstring>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {

std::string_view TransportOptions::Own(const TransportSetting& setting) const {
  const auto found = own.find(setting.name);
  return found == own.end() ? setting.usual : std::string_view(found->second);
}

Status TransportOptions::CheckOwn(const TransportSetting& setting) const {
  if (setting.is_valid(Own(setting))) return Status();
  return Status(StatusCode::kInvalidArgument,
                StrCat(setting.name, ": expected ", setting.expected, ", got '",
                       Own(setting), "'"));
}

Status ValidateConnect(const ConnectArgs& args) {
  if (args.rank >= 0 && args.rank < args.size &&
      args.addresses.size() == static_cast<std::size_t>(args.size)) {
    return Status();
  }
  return Status(StatusCode::kInvalidArgument,
                StrCat("expected a rank below ", args.size,
                       " and as many addresses, seen rank ", args.rank, " and ",
                       args.addresses.size(), " addresses"));
}

}  // namespace gradientflow
