#pragma once

#include <cstddef>
#include <vector>

#include "gradientflow/collectives/schedule.h"

// What collectives cost, in seconds. The functions are pure, so ranks with the
// same numbers decide alike. Letters in quotes are the symbols of
// gradientflow/docs/algorithms.md.
namespace gradientflow {

// A message costs more per byte past this size, where it no longer fits in what
// sockets and caches hold at once.
inline constexpr double kShortMessageBytes = 32 << 10;

// One path between two ranks, as measured or assumed.
struct LinkModel {
  double latency_seconds = 0;   // "a": of a round of messages.
  double seconds_per_byte = 0;  // "b": in each direction.
  // "c": to add a byte to another, or to write one to shared memory.
  double reduce_seconds_per_byte = 0;
  // "m": a rank's own work per message; messages follow one another.
  double message_seconds = 0;
  // "d": on top of "b", for the bytes of a message past kShortMessageBytes.
  double long_seconds_per_byte = 0;
  // "w": how much longer a round takes while one rank works and all others wait
  // for messages: they take their turns on the cores that they share with it.
  double waiting_seconds = 0;
};

struct CostModel {
  LinkModel inside;  // Between ranks of one host.
  // Between hosts. The ranks of a host share its seconds_per_byte.
  LinkModel across;
};

// A kSync is one store that the others see, whereas a message is written, found
// and matched. So it takes half as long.
inline double SyncSeconds(const LinkModel& inside) {
  return inside.latency_seconds / 2;
}

// Ranks that share lines and cores are slower the more of them work.
struct CostModels {
  CostModel together;  // Every rank sends a message at the same time.
  CostModel alone;     // Only one rank and its peers do.
};
// Returns one link's costs if the average rank does `share` of the busiest
// rank's work: each cost but the latency is `share` of its value in `together`,
// or its value in `alone` if that is larger. The latency is the larger of both,
// because a rank that waits for a message also waits for its turn on a core,
// plus 1 - `share` times "w" of `together`. The rest of "w" is left for the
// case that of those ranks, too, only a share works.
LinkModel UnderLoad(const LinkModel& alone, const LinkModel& together,
                    double share);

// The model until something has been measured: 10 Gb/s Ethernet between hosts,
// and inside a host shared memory or, without it, TCP.
CostModel TypicalCostModel(bool hosts_share_memory = true);
inline CostModels TypicalCostModels(bool hosts_share_memory = true) {
  const CostModel model = TypicalCostModel(hosts_share_memory);
  return {model, model};
}

// How ranks are spread over hosts, in as few numbers as prices need: their
// count grows with the logarithm of the number of ranks. For each pattern of
// messages there is the crossing: how many ranks of the busiest host send to
// other hosts.
class HostMap {
 public:
  // Each rank is on a host of its own.
  explicit HostMap(int size = 1);
  // An empty topology puts each rank on a host of its own.
  HostMap(int size, const Topology& topology);

  int size() const { return size_; }
  int hosts() const { return hosts_; }
  int largest() const { return largest_; }    // Ranks of the largest host.
  int smallest() const { return smallest_; }  // Ranks of the smallest host.
  // The number of rounds that take a message from one rank to all others if
  // the number of ranks that have it doubles: log2 size, rounded up.
  int doublings() const { return static_cast<int>(shift_.size()); }
  // The largest power of two that is not above size().
  int core() const { return core_; }

  // The crossing if every rank sends to the rank 2^k after it.
  double Shift(int k) const { return shift_[static_cast<std::size_t>(k)]; }
  // The crossing of a ring in which the ranks of a host are neighbours.
  double ring() const { return hosts_ > 1 ? 1 : 0; }
  // The crossing if the ranks below core() swap with the rank whose number
  // differs in bit k.
  double Swap(int k) const { return swap_[static_cast<std::size_t>(k)]; }
  // The crossing if the ranks from core() on swap with rank - core().
  double fold() const { return fold_; }
  // Messages of the busiest host to others if every rank sends to every rank.
  double all_pairs() const { return all_pairs_; }
  // Makes `root` the root of Branch(). `topology` is the constructor's.
  void SetRoot(int root, const Topology& topology);
  // The part of the branches of length 2^k of a binomial tree that lead to
  // other hosts. The tree is over places counted upwards and around from the
  // root.
  double Branch(int k) const { return branch_[static_cast<std::size_t>(k)]; }
  // The part of all ranks that send along these branches.
  double BranchShare(int k) const {
    const int length = 1 << k;
    const int branches = (size_ + length - 1) / (2 * length);
    return static_cast<double>(branches) / size_;
  }

 private:
  int size_ = 1;
  int core_ = 1;
  int hosts_ = 1;
  int largest_ = 1;
  int smallest_ = 1;
  std::vector<double> shift_;
  std::vector<double> swap_;
  std::vector<double> branch_;
  double fold_ = 0;
  double all_pairs_ = 0;
};

// What the busiest rank does in one round.
struct Traffic {
  double messages = 1;       // That it sends.
  double bytes = 0;          // That it sends.
  double line_bytes = 0;     // That its whole host sends to other hosts.
  double reduced_bytes = 0;  // That it adds or copies.
};

// The price of one segment of a call.
struct Price {
  // The time until its last rank is done, if nothing else runs.
  double elapsed = 0;
  // The time for which the rank or line that works most is busy. A segment that
  // follows ends that much later.
  double busy = 0;
  int terms = 0;  // Kinds of rounds that were added up.

  // `rounds` rounds alike, one after another, in each of which every rank is
  // as busy as the busiest.
  void Add(double rounds, const Traffic& traffic, const LinkModel& link);
  // `syncs` kSyncs, and `moved_bytes` that the busiest rank adds or copies.
  void AddSyncs(double syncs, double moved_bytes, const LinkModel& inside);
};

// Seconds of `segments` segments, of which at most `window` run at a time.
double PipelineSeconds(const Price& segment, double segments, double window);

}  // namespace gradientflow
