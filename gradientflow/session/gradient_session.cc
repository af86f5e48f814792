#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gradientflow/base/fork.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/buckets/bucket_size.h"
#include "gradientflow/buckets/dense.h"
#include "gradientflow/buckets/tuner.h"
#include "gradientflow/communicator/core.h"
#include "gradientflow/csc/chunk_selector.h"
#include "gradientflow/csc/sparse.h"
#include "gradientflow/session.h"
#include "gradientflow/session/agreement.h"
#include "gradientflow/session/checkpoints.h"
#include "gradientflow/session/claims.h"
#include "gradientflow/session/gradient_pool.h"
#include "gradientflow/session/lent_places.h"
#include "gradientflow/session/opening.h"
#include "gradientflow/session/steps.h"

// How a session is put together and taken apart, and its public methods, which
// refuse calls in a fork. A session opens like this:
//
//   Prepare()  checks what this rank can check by itself
//   Agree()    ranks compare settings and tensors, and choose a channel
//              (opening.h)
//   Cost()     ranks measure an allreduce, if bucket sizes are to be chosen
//   Build()    allocates the memory and makes the objects that run steps
//   AllAgree() has every rank succeeded? (opening.h)
namespace gradientflow {
namespace {

// Reports and states identify tensors by their names.
Status CheckNames(const std::vector<TensorSpec>& tensors) {
  std::unordered_map<std::string, std::size_t> seen;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto [before, is_new] = seen.try_emplace(tensors[i].name, i);
    if (is_new) continue;
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("tensors ", before->second, " and ", i, " both have the name '",
               tensors[i].name, "'; without a name, tensor i is 'tensor<i>'"));
  }
  return Status();
}

std::uint64_t RandomWord() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

Result<PoolLayout> LayoutOf(const std::vector<TensorSpec>& tensors,
                            DType type) {
  std::vector<std::size_t> elements;
  for (const TensorSpec& spec : tensors) elements.push_back(spec.elements);
  return PoolLayout::Aligned(elements, SizeOf(type));
}

}  // namespace

struct GradientSession::Parts {
  ~Parts();

  // See above.
  Status Prepare(const std::vector<TensorSpec>& tensors);
  Status Agree(const Status& prepared);
  Status Build(const std::optional<CallCost>& cost);

  CommunicatorCore& core() const { return comm->core(); }
  Status JoinChannel(const OpeningTerms& terms);
  Result<std::optional<CallCost>> Cost();
  Result<std::unique_ptr<Aggregator>> MakeAggregator(std::size_t bucket_bytes);

  std::shared_ptr<Communicator> comm;
  Options options;
  GroupId base_group = 0;  // As asked for.
  CallGroup ranks;         // The ranks of that group.
  GroupId group = 0;       // The group whose gradient channel the session has.
  GroupId notes_id = 0;    // See ClosingNotes.
  bool has_channel = false;
  std::optional<LentPlaces> places;  // If the session is on a group.
  std::vector<TensorSpec> specs;
  std::vector<std::string> names;
  std::uint64_t job = 0;
  std::optional<PoolLayout> layout;
  std::unique_ptr<GradientPool> pool;
  std::unique_ptr<Aggregator> aggregator;
  std::optional<Steps> steps;
  std::optional<Checkpoints> checkpoints;
};

Status GradientSession::Parts::Prepare(const std::vector<TensorSpec>& tensors) {
  GF_RETURN_IF_ERROR(options.ValidateValues());
  specs = tensors;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name.empty()) specs[i].name = StrCat("tensor", i);
    names.push_back(specs[i].name);
  }
  GF_RETURN_IF_ERROR(CheckNames(specs));
  Result<PoolLayout> made = LayoutOf(specs, options.pool_dtype);
  if (!made.ok()) return made.status();
  layout.emplace(std::move(made).value());
  return Status();
}

Status GradientSession::Parts::Agree(const Status& prepared) {
  OpeningTerms mine;
  mine.job = RandomWord();
  mine.channel_is_free = core().GradientsAreFree(base_group);
  mine.own_group = core().NextOwnGroup();
  const bool has_own_places = base_group == 0 && mine.channel_is_free;
  if (!has_own_places) mine.lends_places = places.emplace(core()).Lend(ranks);
  const auto text =
      prepared.ok() ? Result<std::string>(SessionText(options, specs, *layout))
                    : Result<std::string>(prepared);
  const Result<OpeningTerms> terms =
      SessionOpening(core(), ranks).Agree(text, mine);
  if (!terms.ok()) return terms.status();
  job = terms.value().job;
  return JoinChannel(terms.value());
}

// Takes the gradient channel of the requested group if no other session has it
// on any rank. Otherwise opens a group of its own with the same ranks and takes
// the channel of that group.
Status GradientSession::Parts::JoinChannel(const OpeningTerms& terms) {
  const GroupId own = terms.own_group;
  group = base_group;
  notes_id = own;
  core().OwnGroupTaken(own);
  if (!terms.channel_is_free) {
    GF_RETURN_IF_ERROR(core().calls().OpenGroup(own, ranks.FabricRanks()));
    group = own;
  }
  if (places) places->Settle(group, terms.lends_places);
  core().TakeGradients(group);
  has_channel = true;
  return Status();
}

// Returns the costs that bucket sizes are computed from, if they are to be
// measured.
Result<std::optional<CallCost>> GradientSession::Parts::Cost() {
  if (options.bucket_bytes != kAutoBytes) return std::optional<CallCost>();
  if (options.size == 1 || layout->elements() == 0) {
    return std::optional<CallCost>(CallCost());
  }
  if (base_group == 0) {
    const Result<CallCost> cost =
        core().MeasuredCallCost(options.pool_dtype, options.wire_dtype);
    if (!cost.ok()) return cost.status();
    return std::optional<CallCost>(cost.value());
  }
  const Result<CallCost> cost = MeasureCallCost(
      [this](CollectiveCall call) {
        call.group = base_group;
        return core().calls().Run(call);
      },
      core().clock());
  if (!cost.ok()) return cost.status();
  return std::optional<CallCost>(cost.value());
}

// Dense, or sparse with the memory that the pool chooses.
Result<std::unique_ptr<Aggregator>> GradientSession::Parts::MakeAggregator(
    std::size_t bucket_bytes) {
  AggregatorArgs parts;
  parts.collective = &pool->collective();
  parts.group = group;
  parts.ranks = options.size;
  parts.layout = &*layout;
  parts.pool = pool->view().data;
  parts.zero = [at = pool.get()](const BufferView& part) {
    return at->Zero(part);
  };
  parts.pool_dtype = options.pool_dtype;
  parts.wire_dtype = options.wire_dtype;
  parts.reduce = options.reduce;
  parts.bucket_bytes = bucket_bytes;
  parts.recorder = &core().recorder();
  parts.clock = &core().clock();
  parts.end = pool->end();
  parts.wire_times = pool->wire_times();
  parts.sync = pool->handover().sync();
  if (options.sparsity <= 0 || layout->elements() == 0) {
    return std::unique_ptr<Aggregator>(
        std::make_unique<DenseAggregator>(parts));
  }
  const bool plain = options.residual == ResidualMode::kPlain;
  CscOptions config;
  std::vector<Extent> dense;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (!specs[i].always_dense) continue;
    dense.push_back({layout->offset(i), layout->tensor_elements(i)});
  }
  config.selection = {
      layout->elements(), options.chunk_elements, options.sparsity,
      options.warmup_steps,
      ChunksTouching(dense, layout->elements(), options.chunk_elements)};
  config.zero_kept = !options.accumulate && (plain || options.zero_kept);
  config.in_gradients = options.accumulate;
  config.keep_factor = plain ? 1.0F : options.momentum;
  Result<CscMemories> memories = pool->NewCscMemories();
  if (!memories.ok()) return memories.status();
  Result<std::unique_ptr<SparseAggregator>> sparse =
      SparseAggregator::Create(parts, config, std::move(memories).value());
  if (!sparse.ok()) return sparse.status();
  return std::unique_ptr<Aggregator>(std::move(sparse).value());
}

Status GradientSession::Parts::Build(const std::optional<CallCost>& cost) {
  GradientPoolArgs parts;
  parts.core = &core();
  parts.options = &options;
  parts.layout = &*layout;
  for (const TensorSpec& spec : specs)
    parts.skip_lars.push_back(spec.skip_lars);
  Result<std::unique_ptr<GradientPool>> made = GradientPool::Create(parts);
  if (!made.ok()) return made.status();
  pool = std::move(made).value();
  GF_RETURN_IF_ERROR(pool->CheckGroup(group));
  const std::size_t bucket_bytes =
      cost ? DefaultBucketBytes(*cost) : options.bucket_bytes;
  Result<std::unique_ptr<Aggregator>> aggregates =
      std::unique_ptr<Aggregator>();
  // The aggregator may submit work to a stream that plain calls use as well.
  core().progress().Do([&] { aggregates = MakeAggregator(bucket_bytes); });
  if (!aggregates.ok()) return aggregates.status();
  aggregator = std::move(aggregates).value();
  StepsArgs of_steps;
  of_steps.core = &core();
  of_steps.options = &options;
  of_steps.layout = &*layout;
  of_steps.names = &names;
  of_steps.pool = pool.get();
  of_steps.aggregator = aggregator.get();
  of_steps.bucket_bytes = bucket_bytes;
  of_steps.ranks = ranks;
  of_steps.group = group;
  of_steps.notes_id = notes_id;
  if (cost && options.size > 1 && layout->elements() > 0) {
    of_steps.tuner = std::make_unique<Tuner>(
        TunerArgs{&*layout, &core().executor(), group,
                  SizeOf(options.wire_dtype), 1.0 - options.sparsity, *cost});
  }
  Result<std::unique_ptr<Profiler>> profiler = Profiler::Open(
      {&options, &*layout, &names, &core().clock(), &core().executor(), group});
  if (!profiler.ok()) return profiler.status();
  of_steps.profiler = std::move(profiler).value();
  steps.emplace(std::move(of_steps));
  checkpoints.emplace(
      CheckpointsArgs{&*steps, pool.get(), &core().progress(), &*layout,
                      StateText(options, specs, *layout), options.rank, job,
                      ClaimArgs{&core().calls(), group, options.size}});
  return Status();
}

// If the device may still use the pool, pool and aggregator must not be freed.
GradientSession::Parts::~Parts() {
  steps.reset();
  if (pool != nullptr && !pool->Close()) {
    LeaveBehind(aggregator.release());
    LeaveBehind(pool.release());
  }
  places.reset();
  if (!has_channel) return;
  core().LeaveGradients(group);
  // An error means that the job has ended, or that calls in flight will end it.
  if (group != base_group) {
    static_cast<void>(core().calls().CloseGroup(group));
  }
}

Result<std::unique_ptr<GradientSession>> GradientSession::Open(
    std::shared_ptr<Communicator> comm, const std::vector<TensorSpec>& tensors,
    const Options& options, GroupId group) {
  GF_RETURN_IF_ERROR(comm->CheckProcess());
  auto parts = std::make_unique<Parts>();
  parts->comm = std::move(comm);
  parts->options = options;
  parts->base_group = group;
  bool is_open = false;
  parts->core().progress().Do([&] {
    const CallGroup* of = parts->core().executor().FindGroup(group);
    is_open = of != nullptr;
    if (!is_open) return;
    parts->options.rank = of->rank;
    parts->options.size = of->size;
    parts->ranks = *of;
  });
  if (!is_open) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("group ", group, " is not open"));
  }
  GF_RETURN_IF_ERROR(parts->Agree(parts->Prepare(tensors)));
  const Result<std::optional<CallCost>> cost = parts->Cost();
  if (!cost.ok()) return cost.status();
  GF_RETURN_IF_ERROR(SessionOpening(parts->core(), parts->ranks)
                         .AllAgree(parts->Build(cost.value())));
  return std::unique_ptr<GradientSession>(
      new GradientSession(std::move(parts)));
}

Result<std::unique_ptr<GradientSession>> GradientSession::Open(
    const Options& options, const std::vector<TensorSpec>& tensors,
    const Exchange& exchange) {
  Result<std::shared_ptr<Communicator>> comm =
      Communicator::Open(options, exchange);
  if (!comm.ok()) return comm.status();
  return Open(std::move(comm).value(), tensors, options);
}

GradientSession::GradientSession(std::unique_ptr<Parts> parts)
    : parts_(std::move(parts)) {}

GradientSession::~GradientSession() {
  if (forked()) LeaveBehind(parts_.release());
}

bool GradientSession::forked() const { return parts_->comm->forked(); }
Status GradientSession::CheckProcess() const {
  return parts_->comm->CheckProcess();
}

// What does not change while the session is open.
Communicator& GradientSession::communicator() const { return *parts_->comm; }
int GradientSession::rank() const { return parts_->options.rank; }
int GradientSession::size() const { return parts_->options.size; }
const Options& GradientSession::options() const { return parts_->options; }
std::size_t GradientSession::tensors() const {
  return parts_->layout->tensors();
}
BufferView GradientSession::pool() const { return parts_->pool->view(); }
std::size_t GradientSession::pool_offset(std::size_t i) const {
  return parts_->layout->offset(i);
}
BufferView GradientSession::gradient(std::size_t i) const {
  return parts_->steps->gradient(i);
}

// These calls return no error. FinishStep() reports what went wrong.
void GradientSession::GradientReady(std::size_t i) {
  if (forked()) return;
  Engine& engine = parts_->steps->engine();
  if (!engine.Claim(i) || engine.Publish(i)) parts_->core().progress().Notify();
}
void GradientSession::GradientAbsent(std::size_t i) {
  if (!forked()) parts_->steps->GradientAbsent(i);
}
std::vector<std::uint8_t> GradientSession::selection() const {
  return forked() ? std::vector<std::uint8_t>() : parts_->steps->selection();
}

Status GradientSession::SetStream(void* native) {
  GF_RETURN_IF_ERROR(CheckProcess());
  return parts_->steps->SetStream(native);
}
Result<StepStats> GradientSession::FinishStep() {
  GF_RETURN_IF_ERROR(CheckProcess());
  return parts_->steps->FinishStep();
}
Result<AsyncStep> GradientSession::FinishStepAsync() {
  GF_RETURN_IF_ERROR(CheckProcess());
  return parts_->steps->FinishStepAsync();
}
Status GradientSession::SetLossScale(float scale) {
  GF_RETURN_IF_ERROR(CheckProcess());
  return parts_->steps->SetLossScale(scale);
}
Status GradientSession::OptimizerStep(
    const std::vector<OptimizerGroup>& groups) {
  GF_RETURN_IF_ERROR(CheckProcess());
  return parts_->steps->OptimizerStep(groups);
}
Status GradientSession::ZeroGradients() {
  GF_RETURN_IF_ERROR(CheckProcess());
  return parts_->steps->ZeroGradients();
}
Result<std::vector<std::byte>> GradientSession::SaveState() const {
  GF_RETURN_IF_ERROR(CheckProcess());
  return parts_->checkpoints->Save();
}
Result<std::size_t> GradientSession::StateBytes() const {
  GF_RETURN_IF_ERROR(CheckProcess());
  return parts_->checkpoints->Bytes();
}
Status GradientSession::RestoreState(std::span<const std::byte> state) {
  GF_RETURN_IF_ERROR(CheckProcess());
  return parts_->checkpoints->Restore(state);
}

}  // namespace gradientflow
