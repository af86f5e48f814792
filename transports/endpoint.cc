#include "transports/endpoint.h"

#include "gradientflow/base/str_cat.h"

namespace gradientflow {

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
