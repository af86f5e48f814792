#include "gradientflow/base/ok_status.h"

namespace gradientflow {

// Made by the compiler, so it is there before anything runs.
constinit const Status kOkStatus;

}  // namespace gradientflow
