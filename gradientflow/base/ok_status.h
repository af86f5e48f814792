#pragma once

#include "gradientflow/base/status.h"

namespace gradientflow {

// OK, for those who pass a reference to it again and again: to make and destroy
// a status of their own would take them a dozen instructions each time.
extern const Status kOkStatus;

}  // namespace gradientflow
