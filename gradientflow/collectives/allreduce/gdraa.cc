#include <cstddef>

#include "gradientflow/collectives/allreduce/reuse.h"
#include "gradientflow/collectives/allreduce/table.h"

namespace gradientflow {
namespace {

Schedule Make(int rank, const CallShape& shape, std::size_t count) {
  Schedule schedule = MakeTwoSync(rank, shape, count);
  schedule.placing = shape.size;
  return schedule;
}

}  // namespace

// GPUDirect RDMA-Aware Allreduce (arXiv 1802.02326): the rounds of two_sync, in
// which each rank writes its messages where they belong on the peer. So the
// data is all that ranks tell each other: no message is announced, called for
// or acknowledged by a program. placed_side.cc says why that is safe.
//
// Its price is that of two_sync, which comes after it in the table: it does the
// same without the handshakes that long messages need otherwise.
constinit const CollectiveAlgorithm allreduce::kGdraa = {
    .name = "gdraa",
    .make = &Make,
    .price = &TwoSyncPrice,
    .memory = CollectiveAlgorithm::Memory::kMustPlace,
    .stand_in = &allreduce::kTwoSync,
    .all_peers = true,
    // Each rank keeps memory for some segments of each channel.
    .most_segment_bytes = std::size_t{1} << 20,
};

}  // namespace gradientflow
