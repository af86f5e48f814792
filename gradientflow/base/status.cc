#include "gradientflow/base/status.h"

#include <cassert>
#include <string>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {

const char* Name(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "OK";
    case StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case StatusCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case StatusCode::kAborted:
      return "ABORTED";
    case StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case StatusCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case StatusCode::kInternal:
      return "INTERNAL";
    case StatusCode::kDataLoss:
      return "DATA_LOSS";
  }
  return "UNKNOWN";
}

Status::Status(StatusCode code, std::string message)
    : failure_(code == StatusCode::kOk
                   ? nullptr
                   : new Failure{code, std::move(message)}) {
  assert(code != StatusCode::kOk);
}

Status::Failure* Status::CopyOf(const Failure& failure) {
  return new Failure(failure);
}

void Status::Delete::operator()(Failure* failure) const { delete failure; }

const std::string& Status::message() const {
  // Never destroyed, since threads may ask while the program ends.
  static const auto* const none = new std::string();
  return ok() ? *none : failure_->message;
}

std::string Status::ToString() const {
  return ok() ? "OK" : StrCat(Name(code()), ": ", message());
}

}  // namespace gradientflow
