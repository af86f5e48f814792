#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gradientflow/base/dtype.h"

// collectives.py gives the programs that it compares orders (lib/serve.h):
//
//   <- bytes warmup iterations check root [word...]   a batch; the root is -1
//   if
//                                                     the collective has none,
//                                                     and the words are the
//                                                     program's
//   -> ok <seconds per call> <wrong elements> [note]
//
// Only the answer to a check has a note: what the program says of the call.
// gloo_peer.py and openmpi_peer.c use the same protocol.
namespace gradientflow::benchmarks {

struct Batch {
  std::size_t bytes = 0;
  int warmup = 0;
  int iterations = 1;
  bool check = false;  // Check one call instead of timing.
  // If there is one, a rank may be done with a call before all have begun it.
  // Each call then begins at a moment that all ranks agree on, from which all
  // of them take the time, and the result is the largest of the ranks' means.
  // If each took the time from its own begin after a barrier, a rank that
  // leaves the barrier late would hide what it waits for.
  int root = -1;
  std::vector<std::string> words;
};

// One rank of a program that is compared. All functions may throw.
class Worker {
 public:
  virtual ~Worker() = default;
  // Prepares for the next calls of Once() and CountWrong().
  virtual void Prepare(const Batch& batch) = 0;
  // Does one call of the batch's bytes.
  virtual void Once() = 0;
  virtual void Barrier() = 0;
  // Returns the largest of all ranks' numbers. Asked only if there is a root.
  virtual std::int64_t Latest(std::int64_t mine);
  // Does one Once() on a known pattern and returns the number of wrong
  // elements. Leaves zeros in the buffers.
  virtual std::uint64_t CountWrong() = 0;
  // Returns what the program has to say of the batch's call, in one line, or
  // nothing.
  virtual std::string Note() { return {}; }
};

// Serve() with the worker's answers.
int ServeBatches(Worker& worker);

// Small integers, whose sums are exact in every type and order. They repeat
// with a prime period, so that an element in the wrong place is noticed. All
// ranks of all programs use the same. `dtype` is a gradient type.
inline constexpr int kMostRanks = 64;  // With exact sums.
void FillPattern(DType dtype, int rank, std::size_t count, void* data);
// The sum of the patterns of ranks [first, end), from element `offset` on.
struct Expected {
  int first = 0;
  int end = 1;
  std::size_t offset = 0;
};
// Returns how many elements of `data` differ from what is expected.
std::uint64_t CountUnexpected(DType dtype, const Expected& expected,
                              std::size_t count, const void* data);

}  // namespace gradientflow::benchmarks
