#include "gradientflow/observe/timeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

constexpr std::string_view kClose = "\n]\n";
// The most laps of the queue that one Drain() takes: producers that never pause
// must not hold it for ever.
constexpr std::size_t kRoundsPerDrain = 4;

std::string JsonString(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    // The names are ours, so a control character in one would be a mistake.
    quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return quoted + '"';
}

std::string Microseconds(Clock::Time time) {
  const long long ns = time.count();
  const unsigned long long magnitude =
      ns < 0 ? 0ULL - static_cast<unsigned long long>(ns)
             : static_cast<unsigned long long>(ns);
  std::array<char, 40> text;
  std::snprintf(text.data(), text.size(), "%s%llu.%03llu", ns < 0 ? "-" : "",
                magnitude / 1000, magnitude % 1000);
  return text.data();
}

std::string SystemError(int error) {
  return std::system_category().message(error);
}

Status PwriteAll(int fd, std::string_view bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t wrote =
        ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      return Status(StatusCode::kResourceExhausted,
                    wrote < 0 ? SystemError(errno) : "nothing was written");
    }
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
    offset += static_cast<std::uint64_t>(wrote);
  }
  return Status();
}

}  // namespace

std::string TimelinePath(std::string_view pattern, int rank) {
  std::string path;
  for (std::size_t at = pattern.find("%r"); at != pattern.npos;
       at = pattern.find("%r")) {
    path.append(pattern.substr(0, at)).append(std::to_string(rank));
    pattern.remove_prefix(at + 2);
  }
  return path.append(pattern);
}

Result<std::unique_ptr<Timeline>> Timeline::Open(const Options& config) {
  Options resolved = config;
  resolved.path = TimelinePath(config.path, config.rank);
  Fd fd(::open(resolved.path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
               0644));
  if (!fd.valid()) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("timeline: cannot write '", resolved.path,
                         "': ", SystemError(errno)));
  }
  std::unique_ptr<Timeline> timeline(new Timeline(resolved, std::move(fd)));
  GF_RETURN_IF_ERROR(timeline->Drain());
  return timeline;
}

Timeline::Timeline(const Options& config, Fd fd)
    : config_(config), fd_(std::move(fd)), queue_(config.capacity) {
  MutexLock lock(mutex_);
  AppendMetadata("process_name", 0,
                 StrCat("\"name\":\"rank ", config.rank, "\""));
  AppendMetadata("process_sort_index", 0,
                 StrCat("\"sort_index\":", config.rank));
}

Timeline::~Timeline() {
  // One call is enough, because no thread adds spans any more. Earlier calls
  // have reported a failure, or there is no one left to report it to.
  static_cast<void>(Drain());
}

void Timeline::Record(const Span& span) noexcept {
  if (!queue_.Push(span)) dropped_.fetch_add(1, std::memory_order_relaxed);
}

Status Timeline::Drain() {
  MutexLock lock(mutex_);
  Span span;
  for (std::size_t i = kRoundsPerDrain * queue_.capacity();
       i > 0 && queue_.Pop(&span); --i) {
    if (failure_.ok()) AppendSpan(span);
  }
  const std::uint64_t dropped = this->dropped();
  if (dropped != dropped_written_) {
    dropped_written_ = dropped;
    AppendMetadata("dropped_spans", 0, StrCat("\"count\":", dropped));
  }
  if (failure_.ok() && !pending_.empty()) {
    if (Status status = WritePending(); !status.ok()) {
      failure_ =
          Status(status.code(), StrCat("timeline: writing '", config_.path,
                                       "' failed: ", status.message()));
    }
  }
  pending_.clear();
  return failure_;
}

void Timeline::AppendEvent(std::string_view event) {
  pending_ += first_ ? "[\n" : ",\n";
  pending_ += event;
  first_ = false;
}

void Timeline::AppendSpan(const Span& span) {
  const TraceRows::Row row = rows_.Place(span);
  if (row.is_new) {
    AppendMetadata("thread_name", row.number,
                   "\"name\":" + JsonString(row.name));
    AppendMetadata("thread_sort_index", row.number,
                   StrCat("\"sort_index\":", row.number));
  }
  AppendEvent(StrCat(
      "{\"ph\":\"X\",\"pid\":", config_.rank, ",\"tid\":", row.number,
      ",\"name\":", JsonString(span.name.empty() ? span.lane : span.name),
      ",\"cat\":", JsonString(span.lane),
      ",\"ts\":", Microseconds(span.begin - config_.origin), ",\"dur\":",
      Microseconds(span.end - span.begin), ",\"args\":{\"step\":", span.step,
      ",\"id\":", span.id, ",\"bytes\":", span.bytes, "}}"));
}

void Timeline::AppendMetadata(std::string_view kind, int row,
                              std::string_view args) {
  AppendEvent(StrCat("{\"ph\":\"M\",\"pid\":", config_.rank, ",\"tid\":", row,
                     ",\"name\":\"", kind, "\",\"args\":{", args, "}}"));
}

Status Timeline::WritePending() {
  const std::size_t bytes = pending_.size();
  pending_ += kClose;
  GF_RETURN_IF_ERROR(PwriteAll(fd_.get(), pending_, end_));
  end_ += bytes;
  return Status();
}

}  // namespace gradientflow
