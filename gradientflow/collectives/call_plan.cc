#include "gradientflow/collectives/call_plan.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "transports/wire.h"

// From a call to its plan: CallPlanner::Plan() chooses the algorithm and the
// segments, ScheduleFor() makes the schedule of a segment, and SignatureOf()
// hashes what the ranks must agree on. The arguments of this rank have been
// checked in call_checks.cc.
namespace gradientflow {
namespace {

// How many decisions a planner remembers: this many, plus this many for each
// rank, since decisions on trees depend on the root.
constexpr std::size_t kDecisionsKept = 256;
constexpr std::size_t kDecisionsKeptPerRank = 4;
constexpr std::uint64_t kFirstHash = 0xCBF29CE484222325;

// An order-dependent hash of values of different kinds.
class Hash {
 public:
  explicit Hash(std::uint64_t first = kFirstHash) : hash_(first) {}
  void Mix(std::uint64_t value) { hash_ = MixHash(hash_, value); }
  void Mix(const std::vector<std::size_t>& values) {
    Mix(values.size());
    for (const std::size_t value : values) Mix(value);
  }
  void Mix(std::string_view text) {
    Mix(text.size());
    for (std::size_t begin = 0; begin < text.size();) {
      std::uint64_t word = 0;
      begin += text.copy(reinterpret_cast<char*>(&word), sizeof(word), begin);
      Mix(word);
    }
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_;
};

std::size_t Sum(const std::vector<std::size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

}  // namespace

Result<CallGroup> Subgroup(const CallGroup& all, GroupId id,
                           const std::vector<int>& ranks) {
  CallGroup group;
  group.id = id;
  group.rank = -1;
  group.size = static_cast<int>(ranks.size());
  group.members = ranks;
  group.few_links = all.few_links;
  std::map<int, int> hosts;  // Hosts are numbered anew within the subgroup.
  std::vector<bool> seen(static_cast<std::size_t>(all.size), false);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const int rank = ranks[i];
    if (rank < 0 || rank >= all.size || seen[static_cast<std::size_t>(rank)]) {
      return Status(StatusCode::kInvalidArgument,
                    StrCat("group ", id, ": rank ", rank, " at place ", i,
                           rank < 0 || rank >= all.size
                               ? StrCat(", expected 0 to ", all.size - 1)
                               : ", which is there already"));
    }
    seen[static_cast<std::size_t>(rank)] = true;
    if (rank == all.rank) group.rank = static_cast<int>(i);
    if (all.topology.host.empty()) continue;
    const int host = all.topology.host[static_cast<std::size_t>(rank)];
    group.topology.host.push_back(
        hosts.emplace(host, static_cast<int>(hosts.size())).first->second);
  }
  if (group.rank < 0) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("group ", id, ": rank ", all.rank,
               ", which opens it, is not among its ", ranks.size(), " ranks"));
  }
  return group;
}

bool HasUnevenParts(const CollectiveCall& call) {
  return call.kind == CollectiveKind::kAllgather && !call.recv_counts.empty();
}

bool UsesCount(const CollectiveCall& call) {
  return call.kind != CollectiveKind::kAllToAll &&
         call.kind != CollectiveKind::kGather &&
         call.kind != CollectiveKind::kScatter &&
         call.kind != CollectiveKind::kBarrier && !HasUnevenParts(call);
}

bool Reduces(CollectiveKind kind) {
  return kind == CollectiveKind::kAllreduce ||
         kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kReduceScatter;
}

// The table of CollectiveCall, as code.
CallBuffers BuffersOf(const CollectiveCall& call, const CallGroup& group) {
  const auto size = static_cast<std::size_t>(group.size);
  const bool root = group.rank == call.root;
  switch (call.kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kBroadcast:
      return {0, call.count};
    case CollectiveKind::kReduce:
      return {call.count, root ? call.count : 0};
    case CollectiveKind::kAllgather:
      if (!call.recv_counts.empty()) {
        return {call.recv_counts[group.rank], Sum(call.recv_counts)};
      }
      return {call.count, call.count * size};
    case CollectiveKind::kReduceScatter:
      return {call.count * size, call.count};
    case CollectiveKind::kAllToAll:
      return {Sum(call.send_counts), Sum(call.recv_counts)};
    case CollectiveKind::kGather:
      return {call.recv_counts[group.rank], root ? Sum(call.recv_counts) : 0};
    case CollectiveKind::kScatter:
      return {root ? Sum(call.send_counts) : 0, call.send_counts[group.rank]};
    case CollectiveKind::kBarrier:
      return {0, 0};
  }
  return {0, 0};
}

namespace {

// The elements that a call is priced and cut by: of its buffer, or of one
// block. For parts that differ, their average; an all-to-all whose counts are
// known to this rank alone is not priced.
std::size_t ElementsOf(const CollectiveCall& call, int size) {
  const auto average = [&](const std::vector<std::size_t>& parts) {
    return Sum(parts) / static_cast<std::size_t>(size);
  };
  if (call.kind == CollectiveKind::kGather || HasUnevenParts(call)) {
    return average(call.recv_counts);
  }
  if (call.kind == CollectiveKind::kScatter) return average(call.send_counts);
  if (call.kind == CollectiveKind::kAllToAll) return call.send_counts.front();
  return call.kind == CollectiveKind::kBarrier ? 1 : call.count;
}

}  // namespace

CallQuestion CallPlanner::QuestionOf(const CollectiveCall& call) const {
  CallQuestion question;
  question.hosts = hosts_;
  if (const int root = TreeRootOf(call); root > 0) {
    question.hosts.SetRoot(root, group_.topology);
  }
  question.count = ElementsOf(call, group_.size);
  question.wire_element_bytes = SizeOf(call.wire);
  question.model = costs_.together;
  question.alone = costs_.alone;
  question.all_share_memory = group_.all_share;
  question.hosts_share_memory = group_.hosts_share;
  question.all_place = group_.HasPlaces(call.channel);
  question.placed_bytes = group_.hosts_place ? cutting_.placed_bytes : 0;
  question.narrow_sums = TraitsOf(call.wire).narrow_sums;
  question.few_links = group_.few_links;
  question.segment_bytes = cutting_.segment_bytes;
  question.window = cutting_.window;
  return question;
}

// Returns the root if prices depend on it, else 0. In trees that begin at the
// root, it decides which branches lead to other hosts. The ranges of a binomial
// reduce do not depend on the root.
int CallPlanner::TreeRootOf(const CollectiveCall& call) const {
  const bool has_tree = call.kind == CollectiveKind::kBroadcast ||
                        call.kind == CollectiveKind::kGather ||
                        call.kind == CollectiveKind::kScatter;
  return has_tree && hosts_.hosts() > 1 && hosts_.largest() > 1 ? call.root : 0;
}

// The call's own algorithm comes first, then the planner's standing one, then
// the only one. Null stands for the one with the least predicted time.
const CollectiveAlgorithm* CallPlanner::WantedFor(
    const CollectiveCall& call) const {
  if (call.algorithm != nullptr) return call.algorithm;
  if (call.kind == CollectiveKind::kAllreduce && standing_ != nullptr) {
    return standing_;
  }
  const auto table = AlgorithmsOf(call.kind);
  // Counts that the other ranks do not know must not decide.
  const bool private_counts =
      call.kind == CollectiveKind::kAllToAll && !call.equal_counts;
  return table.size() == 1 || private_counts ? table.front() : nullptr;
}

// Training repeats the same few sizes, so decisions are kept.
const CallPlanner::Decision& CallPlanner::Decide(const CollectiveCall& call) {
  const CollectiveAlgorithm* wanted = WantedFor(call);
  const DecisionKey key{call.kind,
                        ElementsOf(call, group_.size),
                        call.wire,
                        TreeRootOf(call),
                        wanted,
                        call.algorithm != nullptr,
                        group_.HasPlaces(call.channel)};
  const auto found = decisions_.find(key);
  if (found != decisions_.end()) return found->second;
  if (decisions_.size() >=
      kDecisionsKept +
          kDecisionsKeptPerRank * static_cast<std::size_t>(group_.size)) {
    decisions_.clear();
  }
  return decisions_.emplace(key, NewDecision(call, wanted)).first->second;
}

CallPlanner::Decision CallPlanner::NewDecision(
    const CollectiveCall& call, const CollectiveAlgorithm* wanted) const {
  const CallQuestion question = QuestionOf(call);
  Decision made;
  std::string why;
  if (wanted != nullptr) {
    made.algorithm = RunnableAlgorithm(wanted, group_.size, group_.SharesAll(),
                                       group_.PlacesAll(call.channel));
    why = call.algorithm != nullptr ? "asked for"
          : wanted == standing_     ? "the session's"
                                    : "the only one";
  } else {
    AlgorithmChoice choice = ChooseAlgorithm(call.kind, question);
    made.algorithm = choice.algorithm;
    why = std::move(choice.reason);
  }
  made.why = std::make_shared<const std::string>(std::move(why));
  made.segment_elements = CutOf(call.kind, *made.algorithm, question).elements;
  made.hash = HashOfDecision(call, *made.algorithm);
  return made;
}

namespace {

bool IsOneSided(const CollectiveAlgorithm& algorithm, const CallGroup& group) {
  switch (algorithm.memory) {
    case CollectiveAlgorithm::Memory::kMessages:
    case CollectiveAlgorithm::Memory::kMustPlace:
      return false;
    case CollectiveAlgorithm::Memory::kMayShare:
      return group.hosts_share;
    case CollectiveAlgorithm::Memory::kMustShare:
      return true;
  }
  return false;
}

}  // namespace

// The part of a signature that is the same for all calls of a decision, since a
// small call takes little longer than hashing all of it does.
std::uint64_t CallPlanner::HashOfDecision(
    const CollectiveCall& call, const CollectiveAlgorithm& algorithm) const {
  Hash hash;
  hash.Mix(static_cast<std::uint64_t>(group_.size));
  for (const int member : group_.members) {
    hash.Mix(static_cast<std::uint64_t>(member));
  }
  hash.Mix(static_cast<std::uint64_t>(call.kind));
  hash.Mix(static_cast<std::uint64_t>(call.wire));
  hash.Mix(std::string_view(Name(&algorithm)));
  hash.Mix(std::uint64_t{IsOneSided(algorithm, group_)});
  return hash.value();
}

CallPlan CallPlanner::Plan(const CollectiveCall& call) {
  CallPlan plan;
  plan.count = call.count;
  plan.same_dtypes = group_.same_dtypes;
  plan.costs = costs_;
  plan.blocked_input = call.kind == CollectiveKind::kReduceScatter;
  plan.blocked_data =
      call.kind == CollectiveKind::kAllgather && !HasUnevenParts(call);
  const Decision& decision = Decide(call);
  plan.algorithm = decision.algorithm;
  plan.why = decision.why;
  plan.hash = decision.hash;
  plan.one_sided = IsOneSided(*plan.algorithm, group_);
  plan.placed_bytes = group_.hosts_place ? cutting_.placed_bytes : 0;
  if (!UsesCount(call)) {
    // Its parts differ between ranks, or it has nothing to cut.
    plan.count = plan.segment_elements = plan.segments = 1;
    return plan;
  }
  plan.segment_elements = decision.segment_elements;
  plan.segments =
      (plan.count + plan.segment_elements - 1) / plan.segment_elements;
  return plan;
}

Schedule ScheduleFor(const CollectiveCall& call, const CallPlan& plan,
                     const CallGroup& group, std::size_t count) {
  CallShape shape;
  shape.size = group.size;
  shape.topology = group.topology;
  shape.one_sided = plan.one_sided;
  shape.placed_bytes = plan.placed_bytes;
  shape.root = call.root;
  const bool collects =
      call.kind == CollectiveKind::kGather || HasUnevenParts(call);
  shape.parts = collects ? call.recv_counts : call.send_counts;
  if (!collects) shape.recv_parts = call.recv_counts;
  shape.wire_element_bytes = SizeOf(call.wire);
  shape.costs = plan.costs;
  return MakeSchedule(*plan.algorithm, group.rank, shape, count);
}

float UnscaleOf(const CollectiveCall& call) {
  const bool last = call.dtype == DType::kFloat32 && !call.keep_scaled;
  return last ? call.unscale : 1.0F;
}

std::string Describe(const CollectiveCall& call, std::uint64_t sequence) {
  return StrCat(Name(call.kind), " #", sequence,
                call.group == 0 ? "" : StrCat(" of group ", call.group), " of ",
                call.count, " ", Name(call.dtype), ", step ", call.step,
                " bucket ", call.bucket);
}

std::string TraceLine(const CollectiveCall& call, std::uint64_t sequence,
                      const std::string& how, double seconds) {
  return StrCat(Name(call.kind), " #", sequence, " step ", call.step,
                " bucket ", call.bucket, ": ", call.count, " ",
                Name(call.dtype),
                call.wire != call.dtype ? StrCat(" as ", Name(call.wire)) : "",
                ", ", call.count * SizeOf(call.wire), " bytes, ", how, ", ",
                seconds * 1e3, " ms");
}

// 0 is reserved for "no extents".
std::uint64_t HashOf(const std::vector<Extent>& extents) {
  if (extents.empty()) return 0;
  Hash hash;
  for (const Extent& extent : extents) {
    hash.Mix(extent.begin);
    hash.Mix(extent.count);
  }
  return std::max<std::uint64_t>(hash.value(), 1);
}

std::uint64_t SignatureOf(const CollectiveCall& call, const CallPlan& plan) {
  Hash hash(plan.hash);
  hash.Mix(static_cast<std::uint64_t>(call.op));
  hash.Mix(static_cast<std::uint64_t>(call.root));
  hash.Mix(plan.segment_elements);
  hash.Mix(std::bit_cast<std::uint32_t>(call.scale));
  hash.Mix(std::bit_cast<std::uint32_t>(call.unscale));
  hash.Mix(call.step);
  hash.Mix(call.bucket);
  // Counts of an all-to-all that may differ between ranks are left out here;
  // the fabric checks the length of each message instead.
  if (UsesCount(call)) hash.Mix(call.count);
  if (call.equal_counts) hash.Mix(call.send_counts.front());
  if (call.kind == CollectiveKind::kGather || HasUnevenParts(call)) {
    hash.Mix(call.recv_counts);
  }
  if (call.kind == CollectiveKind::kScatter) hash.Mix(call.send_counts);
  hash.Mix(call.place != 0 ? call.place : HashOf(call.extents));
  if (plan.same_dtypes) hash.Mix(static_cast<std::uint64_t>(call.dtype));
  return hash.value();
}

}  // namespace gradientflow
