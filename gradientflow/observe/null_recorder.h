#pragma once

#include "gradientflow/observe/recorder.h"

namespace gradientflow {

// The recorder of jobs without a timeline.
class NullRecorder final : public Recorder {
 public:
  void Record(const Span& /*span*/) noexcept override {}
};

}  // namespace gradientflow
