#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gradientflow/base/thread_sanitizer.h"

// What the thread sanitizer is told about the calls that move bytes through a
// connection. Without it, nothing is done.
//
//   an io thread    sends a block  ----------+
//   the peer                                 reduces it, answers  --+
//   another one     receives the answer where the block was  <------+
//
// A rank may post that receive before it knows that the block has left
// (CollectiveAlgorithm::receives_early), so that only the peer orders the two
// threads. The sanitizer knows that what precedes a send precedes what follows
// the receive of its answer. But it takes the block for read after the send,
// and the answer for written before the receive ends. So its own view of the
// memory is switched off during the calls, and a block is reported as read
// before, and an answer as written after them. Its view of the descriptor is
// off meanwhile, too.
namespace gradientflow {

#if defined(GF_THREAD_SANITIZER)

extern "C" {
void TellRead(void* begin, std::size_t bytes) __asm__("__tsan_read_range");
void TellWritten(void* begin, std::size_t bytes) __asm__("__tsan_write_range");
}

// Returns what `call` returns.
template <typename Call>
std::int64_t WithSendTold(std::span<const iovec> pieces, const Call& call) {
  for (const iovec& piece : pieces) {
    TellRead(piece.iov_base, piece.iov_len);
  }
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  const std::int64_t sent = call();
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  return sent;
}

template <typename Call>
std::int64_t WithReceiveTold(std::span<const iovec> pieces, const Call& call) {
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  const std::int64_t received = call();
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  auto left = static_cast<std::size_t>(std::max<std::int64_t>(received, 0));
  for (const iovec& piece : pieces) {
    const std::size_t bytes = std::min(piece.iov_len, left);
    TellWritten(piece.iov_base, bytes);
    left -= bytes;
  }
  return received;
}

#else

template <typename Call>
std::int64_t WithSendTold(std::span<const iovec> /*pieces*/, const Call& call) {
  return call();
}

template <typename Call>
std::int64_t WithReceiveTold(std::span<const iovec> /*pieces*/,
                             const Call& call) {
  return call();
}

#endif

}  // namespace gradientflow
