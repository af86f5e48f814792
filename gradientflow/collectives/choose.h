#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/algorithm.h"
#include "gradientflow/collectives/schedule.h"
#include "gradientflow/collectives/table.h"

// Chooses how to run a collective. An algorithm is identified by its row in
// table.h. The null pointer means "auto": the algorithm that ChooseAlgorithm()
// picks. All functions are pure and may be called on any thread.
namespace gradientflow {

// Returns the name of the row, or "auto" for null.
const char* Name(const CollectiveAlgorithm* algorithm);
// The inverse of Name(). Returns kInvalidArgument, with a list of all names of
// `kind`, for any other text.
Result<const CollectiveAlgorithm*> ParseAlgorithm(CollectiveKind kind,
                                                  std::string_view name);
Result<const CollectiveAlgorithm*> ParseAllreduceAlgorithm(
    std::string_view name);
// Returns "auto, shared, ... or one_sync", in static storage.
std::string_view AllreduceNames();

// Returns `algorithm` if `size` ranks can run it, else the algorithm that
// stands in for it. `all_share` says whether all of the ranks share memory,
// `all_place` whether all have places for each other.
const CollectiveAlgorithm* RunnableAlgorithm(
    const CollectiveAlgorithm* algorithm, int size, bool all_share,
    bool all_place = false);

// How a call is cut into segments.
struct SegmentCut {
  std::size_t elements = 1;  // Of the buffer, or of each block.
  double segments = 1;
};

// Cuts by bytes on the wire, because the pool's dtype may differ between ranks
// and all of them must cut alike. `segment_bytes` is the size of a segment
// among up to 8 ranks. With more ranks a segment grows with their number, or
// with its square if it has the least messages, up to 8 MiB: a core needs as
// long for a message as for its first 32 KiB. An allreduce by messages inside
// one host is not cut below 4 segments' size. A one-sided segment is larger
// still: it has no latency to hide. If there is a block per rank, or a rank
// takes in a segment of every other rank, that size is what a segment takes of
// each block; it takes less of each if all blocks together would exceed 4 MiB,
// but at least an eighth of `segment_bytes`. Segments that pass through the
// ranks one after another are halved, down to 32 KiB, as long as that makes the
// predicted time shorter.
SegmentCut CutOf(CollectiveKind kind, const CollectiveAlgorithm& algorithm,
                 const CallQuestion& question);

struct AlgorithmChoice {
  const CollectiveAlgorithm* algorithm = nullptr;
  double seconds = 0;  // Predicted.
  // A line for traces: "two_sync 0.81 ms (ring 1.2, ...): 4194304 bytes, 4
  // ranks".
  std::string reason;
  // The terms of all prices that were compared: what choosing has cost.
  int terms = 0;
};

// Returns the predicted time of `algorithm` in seconds, or infinity if the
// ranks cannot run it or it makes no sense for them.
double PredictSeconds(CollectiveKind kind, const CollectiveAlgorithm& algorithm,
                      const CallQuestion& question, int* terms = nullptr);

// Returns the algorithm with the least predicted time; among equals, the first
// in the table. Ranks that ask equal questions get equal answers.
AlgorithmChoice ChooseAlgorithm(CollectiveKind kind,
                                const CallQuestion& question);
// The same without its line for traces, which takes longer than the choice.
AlgorithmChoice CheapestAlgorithm(CollectiveKind kind,
                                  const CallQuestion& question);

// Returns rank `rank`'s part of a call of `count` elements. An empty topology
// puts every rank on a host of its own. REQUIRES that the ranks can run
// `algorithm`.
Schedule MakeSchedule(const CollectiveAlgorithm& algorithm, int rank,
                      const CallShape& shape, std::size_t count);

}  // namespace gradientflow
