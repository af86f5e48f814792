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

// Spans into a file that Perfetto and chrome://tracing open: the Trace Event
// Format's JSON array of complete events. One process per rank (pid = rank),
// one track per lane; times in microseconds. Every Drain() leaves the file a
// whole JSON document, so that one of a killed process opens too; a death in
// the middle of the write itself leaves an array without its closing bracket,
// which both viewers accept.
class Timeline final : public Recorder {
 public:
  struct Config {
    std::string path;  // "%r" becomes the rank.
    int rank = 0;
    // Time 0 of the file. The same on all ranks, for their files to align.
    Clock::Time origin{};
    // Spans between two Drain()s before some are dropped; 80 bytes each.
    std::size_t capacity = std::size_t{1} << 14;
  };

  // Replaces the file. kInvalidArgument with the path and the system's reason
  // if it cannot be written.
  static Result<std::unique_ptr<Timeline>> Open(const Config& config);
  ~Timeline() override;  // Drains. REQUIRES that no thread records any more.

  // Any thread; lock-free. Drops the span, and counts it, if the queue is full.
  void Record(const Span& span) noexcept override;

  // Writes what was recorded. Call every 100 ms or so. Any thread; does I/O.
  // The first failure ends the file; it is returned then and ever after.
  Status Drain() GF_EXCLUDES(mutex_);

  std::uint64_t dropped() const {
    return dropped_.load(std::memory_order_relaxed);
  }

 private:
  Timeline(const Config& config, Fd fd);
  void AppendEvent(std::string_view event) GF_REQUIRES(mutex_);
  void AppendSpan(const Span& span) GF_REQUIRES(mutex_);
  void AppendMetadata(std::string_view kind, int row, std::string_view args)
      GF_REQUIRES(mutex_);
  Status WritePending() GF_REQUIRES(mutex_);

  const Config config_;
  const Fd fd_;
  SpanQueue queue_;
  std::atomic<std::uint64_t> dropped_{0};

  Mutex mutex_;
  TraceRows rows_ GF_GUARDED_BY(mutex_);
  std::string pending_ GF_GUARDED_BY(mutex_);
  // Where the closing bracket is: the next event goes over it.
  std::uint64_t end_ GF_GUARDED_BY(mutex_) = 0;
  bool first_ GF_GUARDED_BY(mutex_) = true;
  std::uint64_t dropped_written_ GF_GUARDED_BY(mutex_) = 0;
  Status failure_ GF_GUARDED_BY(mutex_);
};

// `pattern` with each "%r" replaced by the rank.
std::string TimelinePath(std::string_view pattern, int rank);

}  // namespace gradientflow
