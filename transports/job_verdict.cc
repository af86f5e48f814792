#include "transports/job_verdict.h"

namespace gradientflow {

void JobVerdict::Fail(const Status& why) {
  if (status_.ok()) status_ = why;
}

}  // namespace gradientflow
