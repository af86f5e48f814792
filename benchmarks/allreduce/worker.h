#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/status.h"

// The programs that allreduce.py compares are told what to do by lines on
// standard input, and answer each on standard output:
//
//   "ready"                                       once, when all ranks have met
//   <- bytes warmup iterations check [word...]    a batch; the words are the
//                                                 program's own
//   -> ok <seconds per allreduce> <wrong elements>
//   -> error <text>
//
// gloo_peer.py and openmpi_peer.c speak the same. Between batches a process
// blocks, and uses no processor. The end of the input ends it.
namespace gradientflow::benchmarks {

struct Batch {
  std::size_t bytes = 0;
  int warmup = 0;
  int iterations = 1;
  bool check = false;  // One allreduce of a known pattern, in place of timing.
  std::vector<std::string> words;
};

// One rank of a program that is compared.
class Worker {
 public:
  virtual ~Worker() = default;
  // Takes in what the next calls are about.
  virtual Status Prepare(const Batch& batch) = 0;
  // One allreduce of the batch's bytes.
  virtual Status Once() = 0;
  virtual Status Barrier() = 0;
  // Does one Once() on a known pattern and returns how many elements are wrong.
  // Leaves zeros.
  virtual Result<std::uint64_t> CountWrong() = 0;
};

// Answers the lines of standard input. Returns the exit status.
int Serve(Worker& worker);

// Small integers, whose sums are exact in every type and order; they repeat
// with a prime period, so that an element in the wrong place shows. All ranks
// of all programs use the same. `dtype` is one of gradients.
inline constexpr int kMostRanks = 16;  // Whose sums are exact.
void FillPattern(DType dtype, int rank, std::size_t count, void* data);
// Elements of `data` that are not the sum of the patterns of `ranks` ranks.
std::uint64_t CountWrongSums(DType dtype, int ranks, std::size_t count,
                             const void* data);

}  // namespace gradientflow::benchmarks
