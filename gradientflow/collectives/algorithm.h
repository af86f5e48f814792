#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "gradientflow/collectives/cost_model.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {

struct CollectiveAlgorithm;

enum class CollectiveKind : std::uint8_t {
  kAllreduce,
  kBroadcast,
  kReduce,
  kAllgather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kBarrier,
};
inline constexpr int kCollectiveKinds = 9;
const char* Name(CollectiveKind kind);

// What the ranks agree on before a schedule is made.
struct CallShape {
  int size = 1;
  Topology topology = {};  // Names the host of each rank.
  bool one_sided = false;  // The schedule may use actions on shared memory.
  int root = 0;
  // The elements of each rank's part, where parts may differ: a gather, a
  // scatter, an all-to-all (what this rank sends), an allgather of parts.
  std::vector<std::size_t> parts = {};
  std::vector<std::size_t> recv_parts = {};  // An all-to-all: what it receives.
  std::size_t wire_element_bytes = 4;
  CostModels costs = TypicalCostModels();
  std::size_t placed_bytes = 0;  // As in CallQuestion.
};

// A call whose duration is to be predicted.
struct CallQuestion {
  HostMap hosts;
  // Elements of the buffer, or of one rank's block if there is one per rank. If
  // blocks differ, their average.
  std::size_t count = 0;
  std::size_t wire_element_bytes = 4;
  CostModel model = TypicalCostModel();  // While all ranks work.
  // While one rank works. Unset: as fast as `model`.
  std::optional<CostModel> alone = std::nullopt;
  bool all_share_memory = false;
  bool hosts_share_memory = false;  // Ranks of one host share memory.
  bool all_place = false;           // As in CallGroup.
  // The most bytes of a block that the ranks of a column can place on each
  // other, if those of one host share memory; 0 if they have no places.
  std::size_t placed_bytes = 0;
  bool narrow_sums = false;  // As in the wire type's traits.
  bool few_links = false;    // As in CallGroup.
  // How calls are cut: see CutOf() in choose.h.
  std::size_t segment_bytes = std::numeric_limits<std::size_t>::max();
  int window = 8;

  int size() const { return hosts.size(); }
  // Returns the costs of a round in which `crossing` ranks of the busiest host
  // send to other hosts. `share` is the work of the average rank divided by
  // that of the busiest one: 1 if all ranks send alike, 1 / size() if one rank
  // sends one message, or receives one from every other rank.
  LinkModel Over(double crossing, double share = 1) const;
  // The same if each rank sends to all others, those of its own host included.
  LinkModel ToAll(double crossing, double share = 1) const;
  // The same for messages in one direction, which keep the busiest rank half as
  // long as an exchange does, by which the costs are measured.
  LinkModel OneWayToAll(double crossing, double share) const;
  // Returns the factor by which bytes take longer if many ranks send to each
  // rank at the same time. Networks for placed messages lose no packets, which
  // would slow down single senders: they pause all senders. The number is an
  // assumption and not measured.
  double Incast() const { return all_place && size() > 2 ? 1.3 : 1.0; }
  // Returns the fraction of blocks that hold an element if `bytes` are cut into
  // `blocks` blocks. Empty ones are not sent.
  double Filled(double bytes, double blocks) const {
    return std::min(1.0,
                    bytes / static_cast<double>(wire_element_bytes) / blocks);
  }
  // Returns the average costs of a round in which `crossing` ranks of the
  // busiest host send to other hosts.
  LinkModel Hop(double crossing, double share = 1) const;
  // Returns the average costs of a hop in a ring around which blocks travel
  // `trips` times, less a hop each time. A ring with few hops between hosts
  // pays the latency between hosts only for these, and the slowest block leaves
  // out hops inside a host.
  LinkModel RingHop(int trips, double share = 1) const;
  // Whether the ranks of a host run it through shared memory and syncs.
  bool OneSided(const CollectiveAlgorithm& algorithm) const;

 private:
  // Mixes the costs of messages; `far` is the part that cross between hosts.
  LinkModel Average(double crossing, double far, double share) const;
};

// One way to run a collective: everything the library knows about it. Each
// algorithm is defined in a file of its collective and listed in table.h. The
// settings, the help text, the planner, the executor and the tests all read
// that table.
struct CollectiveAlgorithm {
  enum class Memory : std::uint8_t {
    kMessages,   // The schedule only sends messages.
    kMayShare,   // One-sided inside hosts whose ranks share memory.
    kMustShare,  // One-sided everywhere: all ranks must share memory.
    kMustPlace,  // Each rank writes its messages where they belong: all ranks
                 // must have places for each other (RemotePlaces).
  };

  // The name in settings and reports: in lower case, unique for its collective.
  const char* name;
  // Returns rank `rank`'s part of a call of `count` elements; see schedule.h.
  // The k-th message from a rank to a peer matches the peer's k-th receive from
  // that rank. A pure function. REQUIRES 0 <= rank < shape.size <= max_ranks.
  Schedule (*make)(int rank, const CallShape& shape, std::size_t count);
  // Returns the price of a segment of `bytes` (per rank, if there are blocks),
  // infinite if the algorithm makes no sense for the question. Adds up a number
  // of terms that grows at most with the logarithm of the number of ranks. A
  // pure function, so ranks with equal questions agree.
  Price (*price)(const CallQuestion& question, double bytes);
  Memory memory = Memory::kMessages;
  int max_ranks = std::numeric_limits<int>::max();
  // The algorithm that runs where `memory` or `max_ranks` rule this one out. It
  // adds in the same order, so results do not depend on which of the two ran.
  const CollectiveAlgorithm* stand_in = nullptr;
  // True if the receives of the next round into kData may be posted while a
  // round still runs, so that data that arrives early needs no copy. An
  // algorithm may set it only if no rank sends a block to this rank before it
  // has received this rank's contribution to that block: otherwise the receive
  // would overwrite data that is still to be sent.
  bool receives_early = false;
  // True if sums of some ranks travel in the dtype of the result. Other
  // algorithms of the collective add all contributions at once, in rank order,
  // and round the sum once. For types with narrow sums only these are chosen.
  bool partial_sums = false;
  // True if the schedule moves several blocks in one message, so that the call
  // must be one segment. It is then chosen for small buffers only.
  bool whole = false;
  // True if some rank exchanges messages with all others. Where links are made
  // when they are needed, it is chosen only if no other algorithm can run.
  bool all_peers = false;
  // True if a rank takes a segment of every other rank into scratch memory, so
  // that with more ranks segments must be smaller.
  bool lands_all = false;
  // True if each segment passes through the ranks one after another, while
  // other segments follow it: shorter segments may then end a call sooner.
  bool passes_on = false;
  // True if each message of an allreduce carries one of p equal parts of the
  // segment: the shortest that there are. Among many ranks its segments grow
  // faster, so that these messages become longer.
  bool least_messages = false;
  // An allreduce is cut into segments of at most so many bytes on the wire.
  std::size_t most_segment_bytes = std::numeric_limits<std::size_t>::max();
  // True if an all-to-all needs CollectiveCall::equal_counts.
  bool equal_counts = false;
};

// The price of an algorithm that makes no sense for a question.
inline Price ImpossiblePrice() {
  return {.elapsed = std::numeric_limits<double>::infinity()};
}

}  // namespace gradientflow
