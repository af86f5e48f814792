#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/choose.h"

namespace gradientflow::benchmarks {

// What all ranks of a group do next.
struct Batch {
  std::size_t bytes = 0;
  DType dtype = DType::kFloat32;
  DType wire = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  const AllreduceAlgorithm* algorithm = nullptr;
  int way = 0;  // Of the bare exchange: of kExchangeWays.
  int warmup = 0;
  int iterations = 1;
  // One allreduce of a known pattern, compared; leaves zeros. Otherwise
  // warm-up and a timed loop over what is there.
  bool check = false;

  std::size_t count() const { return bytes / SizeOf(dtype); }
};

// What it came to on one rank.
struct Outcome {
  double seconds = 0;  // Per allreduce.
  std::uint64_t wrong = 0;
};

// One line each, without the newline. The peers' programs speak it too:
// "bytes dtype wire op algorithm way warmup iterations check".
std::string Encode(const Batch& batch);
Result<Batch> DecodeBatch(const std::string& line);
// "ok seconds wrong" or "error text".
std::string Encode(const Result<Outcome>& outcome);
Result<Outcome> DecodeOutcome(const std::string& line);

}  // namespace gradientflow::benchmarks
