#pragma once

#include "gradientflow/base/status.h"

namespace gradientflow {

// Whether a rank's job goes on and, if not, why. The first reason counts: what
// fails later has most often failed because of that. NOT thread-safe.
class JobVerdict {
 public:
  void Fail(const Status& why);
  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

 private:
  Status status_;
};

}  // namespace gradientflow
