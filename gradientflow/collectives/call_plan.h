#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/choose.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/schedule.h"
#include "transports/wire.h"

namespace gradientflow {

// The ranks that take part in a call, and how they reach each other.
struct CallGroup {
  int rank = 0;
  int size = 1;
  GroupId id = 0;
  // members[r] is the fabric's number of rank r. Empty if both are the same.
  std::vector<int> members = {};
  Topology topology;
  bool all_share = false;    // All ranks share memory.
  bool hosts_share = false;  // Ranks of one host share memory.
  // All ranks have places for each other: see transports/remote_places.h.
  bool all_place = false;
  // All ranks share memory with those of their host, and have places for those
  // of other hosts.
  bool hosts_place = false;
  // All ranks have places for each other's gradients, but not for more: this is
  // a group that has been lent a window of slots (placed_layout.h).
  bool gradients_place = false;
  // Links are made when they are needed, so algorithms that need few are
  // preferred.
  bool few_links = false;
  // True if a call's buffers have the same dtype and extents on all ranks. In a
  // mixed group it is false: some ranks hold their part of an allreduce packed
  // and already in the wire dtype (a device's pool, staged in host memory),
  // others do not. All ranks still end with the same bits, rounded to the wire
  // dtype.
  bool same_dtypes = true;

  // True if a schedule may use shared memory between all ranks.
  bool SharesAll() const { return all_share || size == 1; }
  // True if all ranks have places for each other in calls on this channel.
  bool HasPlaces(Channel channel) const {
    return all_place || (gradients_place && channel == Channel::kGradients);
  }
  // True if messages may be placed on all ranks in such calls.
  bool PlacesAll(Channel channel) const {
    return HasPlaces(channel) || size == 1;
  }
  int FabricRank(int r) const {
    return members.empty() ? r : members[static_cast<std::size_t>(r)];
  }
  // The fabric's numbers of all ranks, by rank.
  std::vector<int> FabricRanks() const {
    std::vector<int> ranks;
    for (int r = 0; r < size; ++r) ranks.push_back(FabricRank(r));
    return ranks;
  }
};

// Returns the group of the `ranks` of `all`, in that order. The new group
// shares no memory and has no places, because the slots of both belong to
// `all` (but see gradients_place). Errors: kInvalidArgument if a rank is not in
// `all` or is named twice, or if this rank is not among `ranks`.
Result<CallGroup> Subgroup(const CallGroup& all, GroupId id,
                           const std::vector<int>& ranks);

// How a call is carried out: its algorithm, and the segments it is cut into. A
// plan depends only on arguments that are equal on all ranks, so all ranks make
// the same plan.
struct CallPlan {
  const CollectiveAlgorithm* algorithm = nullptr;
  // One line for the trace. Shared by all plans of the same choice, because a
  // small call takes less time than a copy of a text does.
  std::shared_ptr<const std::string> why;
  // The costs by which an algorithm chooses among its variants. They are a
  // copy, because all segments of a call must follow the same ones.
  CostModels costs;
  // A hash of what calls of this plan have in common, for SignatureOf().
  std::uint64_t hash = 0;
  bool one_sided = false;
  std::size_t placed_bytes = 0;  // As in CallQuestion.
  bool same_dtypes = true;       // As in CallGroup.
  std::size_t count = 0;         // Elements that are cut into segments.
  std::size_t segment_elements = 0;
  std::uint64_t segments = 0;
  // True if that buffer holds `size` blocks of `count` elements. Each segment
  // then takes the same part of every block.
  bool blocked_input = false;
  bool blocked_data = false;

  // Which of the `count` elements are in segment number `index`.
  Extent Part(std::uint64_t index) const {
    const std::size_t first = index * segment_elements;
    return {first, std::min(segment_elements, count - first)};
  }
};

// Returns whether calls of this kind combine the values of the ranks.
bool Reduces(CollectiveKind kind);

// Returns whether `call` is an allgather to which each rank brings its own
// number of elements.
bool HasUnevenParts(const CollectiveCall& call);

// Returns whether `call.count` says how many elements the call has, the same on
// all ranks; other calls have counts per rank, or no elements.
bool UsesCount(const CollectiveCall& call);

// Returns how many elements `call` reads and writes on this rank; see
// CollectiveCall. REQUIRES a valid call.
struct CallBuffers {
  std::size_t input = 0;
  std::size_t output = 0;  // With extents, only the elements in them.
};
CallBuffers BuffersOf(const CollectiveCall& call, const CallGroup& group);

// Returns what the output of `call` is multiplied by after the last rounding.
float UnscaleOf(const CollectiveCall& call);

// Describes a call for reports: "allreduce #7 of 5 float32, step 3 bucket 1".
std::string Describe(const CollectiveCall& call, std::uint64_t sequence);
// Returns a line for the log about a call that took `seconds`. `how` names its
// segments and its algorithm.
std::string TraceLine(const CollectiveCall& call, std::uint64_t sequence,
                      const std::string& how, double seconds);

// Returns a hash of the extents: 0 if there are none, else never 0.
std::uint64_t HashOf(const std::vector<Extent>& extents);
// Returns a hash of both arguments. Every bit of each of them counts: for a
// given hash this is a bijection of the value, so two sequences that differ in
// a single value never have the same hash.
constexpr std::uint64_t MixHash(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0xFF51AFD7ED558CCD;
  hash ^= hash >> 33;
  hash *= 0xC4CEB9FE1A85EC53;
  return hash ^ hash >> 29;
}

// Returns kInvalidArgument if `algorithm` is for another kind of call, or if
// `group` lacks the memory, or on that channel the places, that it needs. Null
// stands for no wish, and is OK.
Status ValidateAlgorithm(CollectiveKind kind,
                         const CollectiveAlgorithm* algorithm,
                         const CallGroup& group,
                         Channel channel = Channel::kPlain);

// Returns OK or kInvalidArgument with a description of what is wrong with
// `call`. Checks the arguments of this rank alone.
Status ValidateCall(const CollectiveCall& call, const CallGroup& group);

// The settings by which calls are cut.
struct Cutting {
  std::size_t segment_bytes = std::size_t{256} << 10;
  int window = 8;  // Segments in flight.
  // The bytes of one segment that ranks of different hosts may place, if the
  // group has hosts_place.
  std::size_t placed_bytes = 0;
};

// Plans the calls of a group and remembers its decisions. NOT thread-safe.
class CallPlanner {
 public:
  // `group` outlives the planner. `standing` is the algorithm of allreduces
  // that do not name one. Where the group's ranks cannot run it, its stand-in
  // runs. If `standing` is null, each allreduce runs the algorithm with the
  // least predicted time, as the other collectives do.
  CallPlanner(const CallGroup& group, const CostModels& costs,
              const Cutting& cutting,
              const CollectiveAlgorithm* standing = nullptr)
      : group_(group),
        hosts_(group.size, group.topology),
        costs_(costs),
        cutting_(cutting),
        standing_(standing) {}
  // A planner of a group that is gone at once.
  CallPlanner(CallGroup&& group, const CostModels& costs,
              const Cutting& cutting,
              const CollectiveAlgorithm* standing = nullptr) = delete;

  // REQUIRES a call that ValidateCall() accepts.
  CallPlan Plan(const CollectiveCall& call);
  // Returns the question to which the algorithms' prices are answers. REQUIRES
  // what Plan() requires.
  CallQuestion QuestionOf(const CollectiveCall& call) const;

  // To be called when the group's memory or places have changed.
  void Forget() { decisions_.clear(); }
  void SetCosts(const CostModels& costs) {
    costs_ = costs;
    decisions_.clear();
  }
  const CostModels& costs() const { return costs_; }

 private:
  // What all calls have in common that are alike in these: the kind, the
  // number of elements, their dtype on the wire, the root of a tree, the
  // algorithm that is wanted or null, whether the call itself wants it, and
  // whether all ranks have places for the call.
  using DecisionKey = std::tuple<CollectiveKind, std::size_t, DType, int,
                                 const CollectiveAlgorithm*, bool, bool>;
  struct Decision {
    const CollectiveAlgorithm* algorithm = nullptr;
    std::shared_ptr<const std::string> why;
    std::size_t segment_elements = 1;
    std::uint64_t hash = 0;  // As in CallPlan.
  };

  int TreeRootOf(const CollectiveCall& call) const;
  const CollectiveAlgorithm* WantedFor(const CollectiveCall& call) const;
  const Decision& Decide(const CollectiveCall& call);
  Decision NewDecision(const CollectiveCall& call,
                       const CollectiveAlgorithm* wanted) const;
  std::uint64_t HashOfDecision(const CollectiveCall& call,
                               const CollectiveAlgorithm& algorithm) const;

  const CallGroup& group_;
  const HostMap hosts_;
  CostModels costs_;
  const Cutting cutting_;
  const CollectiveAlgorithm* const standing_;
  std::map<DecisionKey, Decision> decisions_;
};

// Returns this rank's part in a segment of `count` elements.
Schedule ScheduleFor(const CollectiveCall& call, const CallPlan& plan,
                     const CallGroup& group, std::size_t count);

// Returns a hash of everything that all ranks must agree on. Calls that differ
// in a single value never have the same signature; calls that differ in more
// have it with probability 2^-64. REQUIRES the plan of that call.
std::uint64_t SignatureOf(const CollectiveCall& call, const CallPlan& plan);

}  // namespace gradientflow
