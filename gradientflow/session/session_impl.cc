#include "gradientflow/session/session_impl.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/session/agreement.h"

// How a session is put together and taken apart. What its gradients live in and
// go through is in session_parts.cc, its steps in session_step.cc, its state in
// session_state.cc, its collectives in session_calls.cc.
namespace gradientflow {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int kSpinMicroseconds = 50;

std::vector<std::string> NamesOf(const std::vector<TensorSpec>& specs) {
  std::vector<std::string> names;
  for (const TensorSpec& spec : specs) names.push_back(spec.name);
  return names;
}

// Spinning pays if no other rank needs the core.
microseconds SpinTime(const Options& options, const CallGroup& group) {
  if (options.spin_microseconds >= 0) {
    return microseconds(options.spin_microseconds);
  }
  const auto near =
      std::count(group.topology.host.begin(), group.topology.host.end(),
                 group.topology.host[group.rank]);
  const auto cores = static_cast<long>(std::thread::hardware_concurrency());
  return microseconds(near <= cores ? kSpinMicroseconds : 0);
}

}  // namespace

SessionImpl::SessionImpl(Parts parts, Transport transport, PoolLayout layout)
    : options_(std::move(parts.options)),
      clock_(std::move(parts.clock)),
      logger_(std::move(parts.logger)),
      recorder_(std::move(parts.recorder)),
      drain_recorder_(std::move(parts.drain_recorder)),
      device_(std::move(parts.device)),
      specs_(std::move(parts.tensors)),
      names_(NamesOf(specs_)),
      layout_(std::move(layout)),
      transport_(std::move(transport)) {}

Result<std::unique_ptr<SessionImpl>> SessionImpl::Create(Parts parts,
                                                         Transport transport) {
  std::vector<std::size_t> elements;
  for (const TensorSpec& spec : parts.tensors) {
    elements.push_back(spec.elements);
  }
  Result<PoolLayout> layout = PoolLayout::Create(elements);
  if (!layout.ok()) return layout.status();
  std::unique_ptr<SessionImpl> session(new SessionImpl(
      std::move(parts), std::move(transport), std::move(layout).value()));
  GF_RETURN_IF_ERROR(session->Build());
  return session;
}

Status SessionImpl::Build() {
  loss_scale_ = options_.loss_scale;
  tuning_ = options_.bucket_bytes == kAutoBytes;
  const kernels::KernelTable& kernels = kernels::CpuKernels();

  ExecutorOptions executor;
  executor.segment_bytes = options_.segment_bytes;
  executor.segments_in_flight = options_.segments_in_flight;
  executor.trace = options_.trace_collectives;
  const Result<const AllreduceAlgorithm*> algorithm =
      ParseAllreduceAlgorithm(options_.algorithm);
  if (!algorithm.ok()) return algorithm.status();
  GF_RETURN_IF_ERROR(ValidateAlgorithm(algorithm.value(), transport_.group));
  executor.algorithm = algorithm.value();
  executor_ = std::make_unique<Executor>(
      ExecutorParts{transport_.fabric.get(), transport_.arena, &kernels,
                    clock_.get(), recorder_.get(), logger_.get()},
      transport_.group, TypicalCostModel(), executor);
  bucket_bytes_ = tuning_ ? 0 : options_.bucket_bytes;
  GF_RETURN_IF_ERROR(BuildDevice());
  GF_RETURN_IF_ERROR(BuildAggregator());
  WatchdogOptions watchdog;
  watchdog.timeout_seconds = options_.timeout_seconds;
  watchdog.stall_check_seconds = options_.stall_check_seconds;
  watchdog.logger = logger_.get();
  messages_ = std::make_unique<Messages>(*transport_.fabric);
  engine_ =
      std::make_unique<Engine>(PartsOfEngine(), watchdog, options_.overlap);
  std::vector<bool> skip_lars;
  for (const TensorSpec& spec : specs_) skip_lars.push_back(spec.skip_lars);
  optimizer_ = std::make_unique<Optimizer>(
      layout_, kernels, skip_lars,
      options_.sparsity > 0 ? options_.chunk_elements : 0);
  progress_ = std::make_unique<Progress>(
      *engine_, *clock_, SpinTime(options_, transport_.group), completions_);
  GF_RETURN_IF_ERROR(Agree());
  GF_RETURN_IF_ERROR(Measure());
  progress_->Do([this] {
    bytes_before_ = BytesSent();
    engine_->Begin(step_, loss_scale_);
  });
  return Status();
}

// Ranks that met at a rendezvous have compared their settings line by line;
// this holds for ranks joined in any way. Rank 0 names the run.
Status SessionImpl::Agree() {
  struct Word {
    std::uint64_t settings;
    std::uint64_t job;
  };
  std::random_device random;
  const Word mine = {std::hash<std::string>()(AgreementText(options_, specs_)),
                     std::uint64_t{random()} << 32 | random()};
  std::vector<Word> all(static_cast<std::size_t>(options_.size), mine);
  if (options_.size > 1) {
    CollectiveCall call;
    call.kind = CollectiveKind::kAllgather;
    call.input = &mine;
    call.output = all.data();
    call.count = sizeof(Word) / sizeof(std::uint64_t);
    call.dtype = call.wire = DType::kInt64;
    GF_RETURN_IF_ERROR(Run(call));
  }
  job_ = all[0].job;
  for (int r = 0; r < options_.size; ++r) {
    if (all[static_cast<std::size_t>(r)].settings == mine.settings) continue;
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("rank ", r, " has other tensors or settings than rank ",
               options_.rank));
  }
  return Status();
}

// Whether buckets, or choices between hosts, depend on measured numbers. Alike
// on all ranks.
bool SessionImpl::GoesByMeasurement() const {
  if (options_.size == 1) return false;
  if (tuning_ && layout_.elements() > 0) return true;
  return options_.algorithm == "auto" && !transport_.group.topology.IsOneHost();
}

Status SessionImpl::Measure() {
  if (GoesByMeasurement()) {
    Result<MeasuredCosts> costs = MeasureCosts(
        options_.size, [this](const CollectiveCall& call) { return Run(call); },
        *clock_);
    if (!costs.ok()) return costs.status();
    costs_ = costs.value();
    progress_->Do([this] { executor_->SetCosts(costs_.model); });
    if (logger_->Enabled(LogLevel::kInfo)) {
      logger_->Log(
          LogLevel::kInfo,
          StrCat("measured: latency ", costs_.channel.latency_seconds * 1e6,
                 " us, bandwidth ", 1e-9 / costs_.channel.seconds_per_byte,
                 " GB/s"));
    }
  }
  if (!tuning_) return Status();
  bucket_bytes_ = DefaultBucketBytes(costs_.channel);
  progress_->Do([this] {
    aggregator_->SetBucketBytes(bucket_bytes_);
    if (options_.size == 1 || layout_.elements() == 0) return;
    tuner_ = std::make_unique<Tuner>(
        TunerParts{&layout_, executor_.get(), SizeOf(options_.wire_dtype),
                   1.0 - options_.sparsity, costs_.channel});
  });
  return Status();
}

SessionImpl::~SessionImpl() {
  if (progress_ != nullptr) {
    progress_->Stop();
    progress_->Do([this] { closing_ = true; });
    if (engine_->InFlight()) {
      transport_.fabric->Fail(
          Status(StatusCode::kAborted,
                 StrCat("rank ", options_.rank,
                        " closed its session with collectives in flight")));
    }
    // The others are told why.
    if (!transport_.fabric->status().ok()) engine_->Poll();
    // What is still pending ends here, while those who wait for it are there.
    CloseDevice();
    transport_.fabric->Leave(milliseconds(2000));
    messages_->FailAll(Status(StatusCode::kAborted, "the session was closed"));
    transport_.fabric.reset();
    // Nobody drives any more: who waited to be told hears it here.
    for (const Completions::Task& task : completions_.Take()) {
      task.tell();
      task.told();
    }
  }
  if (drain_recorder_) drain_recorder_();
  shared_.clear();
}

void SessionImpl::CloseDevice() {
  if (device_side_ == nullptr || device_side_->Close()) return;
  logger_->Log(LogLevel::kError,
               StrCat(device_->description(),
                      " does not come to its end: its memory is left behind"));
  static_cast<void>(aggregator_.release());
  static_cast<void>(device_side_.release());
  // The staging is in the arena.
  static_cast<void>(
      std::make_unique<std::shared_ptr<void>>(transport_.keep_alive).release());
}

BufferView SessionImpl::gradient(std::size_t i) const {
  const std::size_t element_bytes = SizeOf(options_.pool_dtype);
  return {pool().data + layout_.offset(i) * element_bytes,
          layout_.tensor_elements(i) * element_bytes, pool().device};
}

void SessionImpl::Abort(const Status& why) {
  progress_->Do([&] {
    if (closing_) return;
    transport_.fabric->Fail(Status(
        why.code(),
        StrCat("rank ", options_.rank, " gave the job up: ", why.message())));
    engine_->Poll();
  });
}

}  // namespace gradientflow
