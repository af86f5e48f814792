#pragma once

#include <cassert>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace gradientflow {

// What the caller can do about a failure. The numbers are part of the C API and
// of the wire format: never renumber them.
enum class StatusCode : std::int32_t {
  kOk = 0,
  kInvalidArgument = 1,     // The caller broke a documented precondition.
  kFailedPrecondition = 2,  // Right call, wrong moment.
  kUnavailable = 3,         // A peer or link is gone.
  kAborted = 4,             // Cancelled by this or another rank.
  kDeadlineExceeded = 5,    // A peer did not answer in time.
  kResourceExhausted = 6,   // Memory, file descriptors, address space.
  kUnimplemented = 7,       // Not built in, or not supported here.
  kInternal = 8,            // A bug in this library.
  kDataLoss = 9,            // Garbage from a peer or in a file.
};

inline constexpr std::uint64_t kMaxStatusCode = 9;

const char* Name(StatusCode code);

// OK, or what went wrong. A value, safe to store and to pass to another thread.
// Never thrown. It passes through every call of the data path, almost always
// OK, so that is a null pointer. What was moved from is OK.
class [[nodiscard]] Status {
 public:
  Status() = default;  // OK.
  // REQUIRES another code than kOk.
  Status(StatusCode code, std::string message);
  Status(const Status& other)
      : failure_(other.ok() ? nullptr : CopyOf(*other.failure_)) {}
  Status(Status&&) noexcept = default;
  Status& operator=(const Status& other) {
    if (!ok() || !other.ok()) *this = Status(other);
    return *this;
  }
  Status& operator=(Status&&) noexcept = default;
  ~Status() = default;

  bool ok() const { return failure_ == nullptr; }
  StatusCode code() const { return ok() ? StatusCode::kOk : failure_->code; }
  // Empty if OK. Valid until this status is assigned to, moved or destroyed.
  const std::string& message() const;
  // For logs: "UNAVAILABLE: rank 2 ...".
  std::string ToString() const;

 private:
  struct Failure {
    StatusCode code;
    std::string message;
  };
  // What only failures need is not part of each caller's code.
  struct Delete {
    void operator()(Failure* failure) const;
  };
  static Failure* CopyOf(const Failure& failure);

  std::unique_ptr<Failure, Delete> failure_;
};

// A T, or the reason why there is none. value() REQUIRES ok().
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}   // NOLINT: implicit.
  Result(Status why) : status_(std::move(why)) {  // NOLINT: implicit.
    assert(!status_.ok());
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & {
    assert(ok());
    return *value_;
  }
  const T& value() const& {
    assert(ok());
    return *value_;
  }
  T&& value() && {
    assert(ok());
    return *std::move(value_);
  }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace gradientflow

// Returns the Status from the enclosing function if it is not OK.
#define GF_RETURN_IF_ERROR(expr)                                        \
  do {                                                                  \
    if (::gradientflow::Status gf_status_ = (expr); !gf_status_.ok()) { \
      return gf_status_;                                                \
    }                                                                   \
  } while (false)
