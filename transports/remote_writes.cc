#include "transports/remote_writes.h"

#include <algorithm>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {

// The card's counter starts again if somebody resets it.
RemoteWrites RemoteWrites::Since(const RemoteWrites& before) const {
  RemoteWrites since;
  since.data = data - before.data;
  since.control = control - before.control;
  since.bytes = bytes - before.bytes;
  if (retries && before.retries) {
    since.retries = *retries - std::min(*retries, *before.retries);
  }
  return since;
}

std::string RemoteWrites::ToString() const {
  return StrCat(data, " data writes, ", control, " control writes, ", bytes,
                " bytes", retries ? StrCat(", ", *retries, " retries") : "");
}

}  // namespace gradientflow
