#pragma once

#include "gradientflow/observe/recorder.h"

namespace gradientflow {

// For sessions without a timeline.
class NullRecorder final : public Recorder {
 public:
  void Record(const Span& /*span*/) noexcept override {}
};

}  // namespace gradientflow
