#include "gradientflow/base/ok_status.h"

namespace gradientflow {

const Status kOkStatus;

}  // namespace gradientflow
