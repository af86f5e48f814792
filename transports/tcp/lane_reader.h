#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "gradientflow/base/status.h"
#include "transports/link.h"
#include "transports/wire.h"

namespace gradientflow {

// Takes the byte stream of one lane apart into messages. Knows no socket, so
// tests and the fuzzer can feed it.
//
// Small messages come through a read-ahead buffer, header and payload with one
// read. The rest of a larger payload is read straight into its landing.
class LaneReader {
 public:
  // Where the bytes come from.
  class Source {
   public:
    virtual ~Source() = default;
    // Fills the pieces in order. Returns the number of bytes; 0 at the end of
    // the stream; -EAGAIN if there are none at present; or another -errno.
    virtual std::int64_t Read(const iovec* pieces, int count) = 0;
  };
  // Where the messages go. May call Stop() and Resume().
  class Sink {
   public:
    virtual ~Sink() = default;
    virtual Result<LinkEvents::Landing> OnHeader(int lane,
                                                 const Header& header) = 0;
    virtual void OnMessage(int lane, const Header& header) = 0;
  };

  enum class Outcome : std::uint8_t {
    kDrained,  // The source has no more at present.
    kMore,     // The budget is spent; there may be more.
    kPaused,   // The sink wants no more before Resume().
    kLarge,    // A part of a large payload is missing: LendLargePayloads().
    kEnded,    // End of stream: end_error(), in_message().
    kFailed,   // Garbage, or refused by the sink: why().
    kStopped,  // Stop() was called.
  };

  // `source` and `sink` outlive the reader.
  LaneReader(int lane, Source* source, Sink* sink)
      : lane_(lane), source_(source), sink_(sink) {}

  // Reads until one of the outcomes. `budget_bytes` bounds the work, but a
  // header is always followed by what has arrived of its payload. Sets `*moved`
  // if any byte was read or any message delivered.
  Outcome Advance(std::size_t budget_bytes, bool* moved);

  // From now on Advance() leaves payloads of at least `bytes` to the caller: it
  // returns kLarge, and is not to be called again before all that is missing
  // has been read from the source into Rest(), or its end has been reached. The
  // caller reports either by Landed() and End().
  void LendLargePayloads(std::size_t bytes) { large_bytes_ = bytes; }
  // What is missing of the payload, missing_bytes() of it, and after that room
  // for a part of what follows. REQUIRES that Advance() has returned kLarge.
  std::array<iovec, 2> Rest();
  std::size_t missing_bytes() const {
    return static_cast<std::size_t>(header_.payload_bytes) - landed_bytes_;
  }
  void Landed(std::size_t bytes);
  void End(int error);

  void Resume() { paused_ = false; }
  bool paused() const { return paused_; }
  // No callback and no access to a landing happens after this call.
  void Stop() { stopped_ = true; }

  // errno; 0 if closed in good order.
  int end_error() const { return end_error_; }
  // Returns whether a message has arrived in part, or is paused.
  bool in_message() const;
  const Status& why() const { return why_; }
  bool refused() const { return refused_; }  // By the sink.

 private:
  enum class Reading : std::uint8_t { kHeader, kLanding, kPayload };

  // Each returns false if Advance() has to return `*outcome`.
  bool ReadNext(Outcome* outcome);
  bool ReadHeader(Outcome* outcome);
  bool FindLanding(Outcome* outcome);
  bool Deliver(Outcome* outcome);
  bool Fill(Outcome* outcome, bool* moved);

  // Moves the part of the payload that is in the buffer to its landing.
  void TakeBuffered();
  std::size_t buffered() const { return end_ - begin_; }

  const int lane_;
  Source* const source_;
  Sink* const sink_;

  Reading reading_ = Reading::kHeader;
  bool paused_ = false;
  bool stopped_ = false;
  bool drained_ = false;  // The last read emptied the source.
  bool ended_ = false;    // By End().
  Header header_;
  std::byte* landing_ = nullptr;
  std::size_t landed_bytes_ = 0;
  std::size_t large_bytes_ = std::numeric_limits<std::size_t>::max();
  std::size_t spent_bytes_ = 0;  // Part of the budget.
  int end_error_ = 0;
  bool refused_ = false;
  Status why_;

  // Bytes [begin_, end_) of the buffer were read ahead.
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::array<std::byte, std::size_t{8} << 10> buffer_;
};

}  // namespace gradientflow
