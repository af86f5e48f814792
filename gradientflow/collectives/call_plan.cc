#include "gradientflow/collectives/call_plan.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <string_view>

#include "gradientflow/base/str_cat.h"
#include "transports/wire.h"

// From a call to its plan: ValidateCall() checks the arguments of this rank,
// CallPlanner::Plan() chooses the algorithm and the segments, ScheduleFor()
// makes the schedule of a segment, and SignatureOf() hashes what the ranks must
// agree on.
namespace gradientflow {
namespace {

// Decisions that a planner remembers.
constexpr std::size_t kDecisionsKept = 256;
constexpr std::uint64_t kFirstHash = 0xCBF29CE484222325;

// An order-dependent hash of values of different kinds.
class Hash {
 public:
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
  std::uint64_t hash_ = kFirstHash;
};

Status Invalid(const CollectiveCall& call, const std::string& what) {
  return Status(StatusCode::kInvalidArgument,
                StrCat(Name(call.kind), ": ", what));
}

// Which dtypes, operations and scales go together.
Status ValidateTypes(const CollectiveCall& call) {
  if (!kernels::IsDType(call.dtype) || !kernels::IsDType(call.wire)) {
    return Invalid(call, "unknown dtype");
  }
  if (static_cast<int>(call.op) >= kReduceOps) {
    return Invalid(call, StrCat("unknown operation ", int(call.op)));
  }
  if (call.wire != call.dtype &&
      (call.kind != CollectiveKind::kAllreduce || !IsGradientType(call.dtype) ||
       !IsGradientType(call.wire))) {
    return Invalid(call, StrCat("wire dtype ", Name(call.wire), " for ",
                                Name(call.dtype), ": only an allreduce of ",
                                GradientTypeNames(), " can convert"));
  }
  if (call.unscale != 1.0F && (call.kind != CollectiveKind::kAllreduce ||
                               !IsGradientType(call.dtype))) {
    return Invalid(call, StrCat("only an allreduce of ", GradientTypeNames(),
                                " unscales, not one of ", Name(call.dtype)));
  }
  if (!Reduces(call.kind)) return Status();
  if (!IsFloat(call.dtype) &&
      (call.op == ReduceOp::kMean || call.scale != 1.0F)) {
    return Invalid(call, StrCat("a mean or a scale needs a floating-point "
                                "dtype, not ",
                                Name(call.dtype)));
  }
  if (IsFloat(call.dtype) && IsBitwise(call.op)) {
    return Invalid(call, StrCat(Name(call.op), " needs an integer dtype, not ",
                                Name(call.dtype)));
  }
  return Status();
}

Status ValidateCounts(const CollectiveCall& call,
                      const std::vector<std::size_t>& counts, int size,
                      const char* name) {
  if (counts.size() == static_cast<std::size_t>(size)) return Status();
  return Invalid(call,
                 StrCat(name, " holds ", counts.size(),
                        " counts, expected one for each of ", size, " ranks"));
}

// The extents must be ascending and disjoint, none of them empty, and add up to
// the call's count.
Status ValidateExtents(const CollectiveCall& call) {
  std::size_t sum = 0;
  std::size_t end = 0;
  for (const Extent& extent : call.extents) {
    if (extent.begin < end || extent.count == 0) {
      return Invalid(call, "extents must ascend and hold something");
    }
    end = extent.begin + extent.count;
    sum += extent.count;
  }
  if (call.extents.empty() || sum == call.count) return Status();
  return Invalid(
      call, StrCat("extents hold ", sum, " elements, count is ", call.count));
}

// Sizes in bytes must not overflow, whatever they are multiplied by later.
Status ValidateSize(const CollectiveCall& call, int ranks) {
  std::size_t most = call.count;
  for (const auto* counts : {&call.send_counts, &call.recv_counts}) {
    for (const std::size_t count : *counts) most = std::max(most, count);
  }
  const std::size_t limit = std::numeric_limits<std::size_t>::max() / 16 /
                            static_cast<std::size_t>(ranks);
  if (most <= limit) return Status();
  return Invalid(
      call, StrCat("a count of ", most, " elements, expected at most ", limit));
}

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

Status ValidateAlgorithm(CollectiveKind kind,
                         const CollectiveAlgorithm* algorithm,
                         const CallGroup& group) {
  if (algorithm == nullptr) return Status();
  const auto table = AlgorithmsOf(kind);
  if (std::find(table.begin(), table.end(), algorithm) == table.end()) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("algorithm ", algorithm->name, " is none of ",
                         Name(kind), "'s"));
  }
  if (group.SharesAll() ||
      algorithm->memory != CollectiveAlgorithm::Memory::kMustShare) {
    return Status();
  }
  return Status(StatusCode::kInvalidArgument,
                StrCat(Name(kind), " algorithm ", algorithm->name,
                       " needs ranks that all share memory; use auto"));
}

Status ValidateAllToAll(const CollectiveCall& call, const CallGroup& group) {
  const std::size_t own = call.send_counts[group.rank];
  if (own != call.recv_counts[group.rank]) {
    return Invalid(
        call, StrCat("rank ", group.rank, " sends itself ", own,
                     " elements but expects ", call.recv_counts[group.rank]));
  }
  for (const auto* counts : {&call.send_counts, &call.recv_counts}) {
    for (const std::size_t count : *counts) {
      if (!call.equal_counts || count == own) continue;
      return Invalid(call, StrCat("equal counts are promised, but there are ",
                                  own, " and ", count));
    }
  }
  if (call.equal_counts || call.algorithm == nullptr ||
      !call.algorithm->equal_counts) {
    return Status();
  }
  return Invalid(
      call, StrCat("algorithm ", call.algorithm->name, " needs equal_counts"));
}

Status ValidateCall(const CollectiveCall& call, const CallGroup& group) {
  if (static_cast<int>(call.kind) >
      static_cast<int>(CollectiveKind::kBarrier)) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("unknown kind of collective: ", int(call.kind)));
  }
  GF_RETURN_IF_ERROR(ValidateTypes(call));
  if (call.root < 0 || call.root >= group.size) {
    return Invalid(
        call, StrCat("root ", call.root, ", expected 0 to ", group.size - 1));
  }
  if (call.kind == CollectiveKind::kAllToAll ||
      call.kind == CollectiveKind::kScatter) {
    GF_RETURN_IF_ERROR(
        ValidateCounts(call, call.send_counts, group.size, "send_counts"));
  }
  if (call.kind == CollectiveKind::kAllToAll ||
      call.kind == CollectiveKind::kGather || HasUnevenParts(call)) {
    GF_RETURN_IF_ERROR(
        ValidateCounts(call, call.recv_counts, group.size, "recv_counts"));
  }
  GF_RETURN_IF_ERROR(ValidateSize(call, group.size));
  if (call.kind == CollectiveKind::kAllToAll) {
    GF_RETURN_IF_ERROR(ValidateAllToAll(call, group));
  }
  GF_RETURN_IF_ERROR(ValidateAlgorithm(call.kind, call.algorithm, group));
  GF_RETURN_IF_ERROR(ValidateExtents(call));
  if (call.feed != nullptr && (call.kind != CollectiveKind::kAllreduce ||
                               !IsGradientType(call.dtype))) {
    return Invalid(call,
                   StrCat("a feed is for an allreduce of ", GradientTypeNames(),
                          ", not of ", Name(call.dtype)));
  }
  const auto [input, output] = BuffersOf(call, group);
  if ((input > 0 && call.input == nullptr) ||
      (output > 0 && call.output == nullptr)) {
    return Invalid(call, "a buffer is null");
  }
  return Status();
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
  question.count = ElementsOf(call, group_.size);
  question.wire_element_bytes = SizeOf(call.wire);
  question.model = costs_.together;
  question.alone = costs_.alone;
  question.all_share_memory = group_.all_share;
  question.hosts_share_memory = group_.hosts_share;
  question.narrow = IsGradientType(call.wire) && SizeOf(call.wire) == 2;
  question.few_links = group_.few_links;
  question.segment_bytes = cutting_.segment_bytes;
  question.window = cutting_.window;
  return question;
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
  const DecisionKey key{call.kind, ElementsOf(call, group_.size), call.wire,
                        wanted, call.algorithm != nullptr};
  const auto found = decisions_.find(key);
  if (found != decisions_.end()) return found->second;
  if (decisions_.size() >= kDecisionsKept) decisions_.clear();
  return decisions_.emplace(key, NewDecision(call, wanted)).first->second;
}

CallPlanner::Decision CallPlanner::NewDecision(
    const CollectiveCall& call, const CollectiveAlgorithm* wanted) const {
  const CallQuestion question = QuestionOf(call);
  Decision made;
  std::string why;
  if (wanted != nullptr) {
    made.algorithm = RunnableAlgorithm(wanted, group_.size, group_.SharesAll());
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
  return made;
}

namespace {

bool IsOneSided(const CollectiveAlgorithm& algorithm, const CallGroup& group) {
  switch (algorithm.memory) {
    case CollectiveAlgorithm::Memory::kMessages:
      return false;
    case CollectiveAlgorithm::Memory::kMayShare:
      return group.hosts_share;
    case CollectiveAlgorithm::Memory::kMustShare:
      return true;
  }
  return false;
}

}  // namespace

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
  plan.one_sided = IsOneSided(*plan.algorithm, group_);
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

std::uint64_t SignatureOf(const CollectiveCall& call, const CallPlan& plan,
                          const CallGroup& group) {
  Hash hash;
  hash.Mix(static_cast<std::uint64_t>(group.size));
  for (const int member : group.members) {
    hash.Mix(static_cast<std::uint64_t>(member));
  }
  hash.Mix(static_cast<std::uint64_t>(call.kind));
  hash.Mix(static_cast<std::uint64_t>(call.wire));
  hash.Mix(static_cast<std::uint64_t>(call.op));
  hash.Mix(static_cast<std::uint64_t>(call.root));
  hash.Mix(std::string_view(Name(plan.algorithm)));
  hash.Mix(std::uint64_t{plan.one_sided});
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
