#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/fd.h"
#include "gradientflow/base/mutex.h"
#include "gradientflow/base/status.h"
#include "gradientflow/observe/recorder.h"
#include "gradientflow/observe/span_queue.h"
#include "gradientflow/observe/trace_rows.h"

namespace gradientflow {

// Writes spans to a file that Perfetto and chrome://tracing open: the JSON
// array of complete events of the Trace Event Format. There is one process per
// rank (pid = rank) and one track per lane; times are in microseconds. Every
// Drain() leaves a complete JSON document in the file, so that the file of a
// killed process opens, too. Death in the middle of the write itself leaves an
// array without its closing bracket, which both viewers accept.
class Timeline final : public Recorder {
 public:
  struct Options {
    std::string path;  // "%r" becomes the rank.
    int rank = 0;
    // Time 0 of the file. Use the same on all ranks to align their files.
    Clock::Time origin{};
    // Number of spans between two Drain()s that fit, 80 bytes each. Further
    // spans are dropped.
    std::size_t capacity = std::size_t{1} << 14;
  };

  // Replaces the file. Returns kInvalidArgument with the path and the system's
  // reason if it cannot be written.
  static Result<std::unique_ptr<Timeline>> Open(const Options& config);
  ~Timeline() override;  // Drains. REQUIRES that no thread records any more.

  // May be called on any thread; lock-free. If the queue is full, drops the
  // span and counts it.
  void Record(const Span& span) noexcept override;

  // Writes what was recorded. To be called every 100 ms or so. May be called on
  // any thread; does I/O. The first failure ends the file. That call and all
  // later ones return it.
  Status Drain() GF_EXCLUDES(mutex_);

  std::uint64_t dropped() const {
    return dropped_.load(std::memory_order_relaxed);
  }

 private:
  Timeline(const Options& config, Fd fd);
  void AppendEvent(std::string_view event) GF_REQUIRES(mutex_);
  void AppendSpan(const Span& span) GF_REQUIRES(mutex_);
  void AppendMetadata(std::string_view kind, int row, std::string_view args)
      GF_REQUIRES(mutex_);
  Status WritePending() GF_REQUIRES(mutex_);

  const Options config_;
  const Fd fd_;
  SpanQueue queue_;
  std::atomic<std::uint64_t> dropped_{0};

  Mutex mutex_;
  TraceRows rows_ GF_GUARDED_BY(mutex_);
  std::string pending_ GF_GUARDED_BY(mutex_);
  // The position of the closing bracket, which the next event overwrites.
  std::uint64_t end_ GF_GUARDED_BY(mutex_) = 0;
  bool first_ GF_GUARDED_BY(mutex_) = true;
  std::uint64_t dropped_written_ GF_GUARDED_BY(mutex_) = 0;
  Status failure_ GF_GUARDED_BY(mutex_);
};

// Returns `pattern` with each "%r" replaced by the rank.
std::string TimelinePath(std::string_view pattern, int rank);

}  // namespace gradientflow
