#include "gradientflow/communicator/core.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/fork.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/measure.h"
#include "gradientflow/communicator/agreement.h"
#include "gradientflow/communicator/cores.h"
#include "gradientflow/communicator/device_costs.h"
#include "gradientflow/observe/null_recorder.h"
#include "gradientflow/observe/stderr_logger.h"
#include "gradientflow/observe/timeline.h"
#include "transports/link_source.h"

// How a communicator is put together and taken apart:
//
//   MakeArgs()  options, clock, log, timeline: what needs no other rank
//   Join()       (transport.h) links to all ranks
//   Build()      executor, device path, messages, driver, progress, calls, from
//                the bottom up; the destructor takes them apart from the top
namespace gradientflow {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr int kSpinMicroseconds = 50;
// This many looks take about a microsecond, depending on the core. Most often
// the peer of a blocking call comes within that time. A round that finds
// nothing ends with a system call that yields the core, and on a busy machine
// that should not come later.
constexpr int kSyncLooks = 100;

// Spinning pays only if each rank of this host has a core of its own.
microseconds SpinTime(const Options& options, int host_ranks) {
  if (options.spin_microseconds >= 0) {
    return microseconds(options.spin_microseconds);
  }
  return microseconds(host_ranks <= HostCores() ? kSpinMicroseconds : 0);
}

Status OpenTimeline(CommunicatorCore::Args* args) {
  if (args->options.timeline.empty()) {
    args->recorder = std::make_unique<NullRecorder>();
    return Status();
  }
  Timeline::Options config;
  config.path = args->options.timeline;
  config.rank = args->options.rank;
  Result<std::unique_ptr<Timeline>> timeline = Timeline::Open(config);
  if (!timeline.ok()) return timeline.status();
  args->drain_recorder = [raw = timeline.value().get(),
                          logger = args->logger.get(), told = false]() mutable {
    const Status status = raw->Drain();
    if (!status.ok() && !std::exchange(told, true)) {
      logger->Log(LogLevel::kWarning, status.message());
    }
  };
  args->recorder = std::move(timeline).value();
  return Status();
}

// Returns the rate, in Mb/s, at which one rank sends long messages; 0 if noise
// hides it. If all ranks send, each gets less. One thread sends no more than
// kMostMbps, whatever the measurement says.
int LineOf(const LinkModel& link) {
  constexpr double kMostMbps = 30'000;
  constexpr double kLeastSecondsPerByte = 8e-6 / 1e6;
  const double cost = link.seconds_per_byte + link.long_seconds_per_byte;
  if (cost < kLeastSecondsPerByte) return 0;
  return static_cast<int>(std::min(8e-6 / cost, kMostMbps));
}

}  // namespace

Result<CommunicatorCore::Args> CommunicatorCore::MakeArgs(
    const Options& options) {
  Args args;
  args.options = options;
  if (options.rank_problem.empty()) {
    if (args.options.rank < 0) args.options.rank = 0;
    if (args.options.size < 0) args.options.size = 1;
  }
  GF_RETURN_IF_ERROR(args.options.Validate());
  args.clock = std::make_unique<SteadyClock>();
  args.logger =
      std::make_unique<StderrLogger>(options.log_level, args.options.rank);
  if (!options.rank_problem.empty()) {
    args.logger->Log(LogLevel::kWarning,
                     StrCat("ignored, as the program says who this process "
                            "is: ",
                            options.rank_problem));
  }
  GF_RETURN_IF_ERROR(OpenTimeline(&args));
  return args;
}

CommunicatorCore::CommunicatorCore(Args args, Transport transport)
    : options_(std::move(args.options)),
      clock_(std::move(args.clock)),
      logger_(std::move(args.logger)),
      recorder_(std::move(args.recorder)),
      drain_recorder_(std::move(args.drain_recorder)),
      device_(std::move(args.device)),
      transport_(std::move(transport)),
      local_(transport_.local.value_or(LocalPlaceIn(transport_.group))),
      cores_(CoresOf(local_)),
      spin_(SpinTime(options_, local_.ranks)),
      next_own_group_(kFirstOwnGroup) {}

Result<std::unique_ptr<CommunicatorCore>> CommunicatorCore::Create(
    Args args, Transport transport) {
  std::unique_ptr<CommunicatorCore> core(
      new CommunicatorCore(std::move(args), std::move(transport)));
  const Status built = core->Build();
  if (!built.ok()) {
    core->TellWhy(built);
    return built;
  }
  return core;
}

Status CommunicatorCore::Build() {
  ExecutorOptions executor;
  executor.segment_bytes = options_.segment_bytes;
  executor.segments_in_flight = options_.segments_in_flight;
  executor.trace = options_.trace_collectives;
  executor.sync_looks = spin_ > nanoseconds(0) ? kSyncLooks : 1;
  const Result<const CollectiveAlgorithm*> algorithm =
      ParseAllreduceAlgorithm(options_.algorithm);
  if (!algorithm.ok()) return algorithm.status();
  GF_RETURN_IF_ERROR(ValidateAlgorithm(CollectiveKind::kAllreduce,
                                       algorithm.value(), transport_.group));
  executor.algorithm = algorithm.value();
  executor_ = std::make_unique<Executor>(
      ExecutorArgs{
          transport_.fabric.get(), transport_.arena, &kernels::CpuKernels(),
          clock_.get(), options_.timeline.empty() ? nullptr : recorder_.get(),
          logger_.get(), transport_.places_all ? transport_.places : nullptr,
          transport_.writes},
      transport_.group, TypicalCostModels(transport_.group.hosts_share),
      executor);
  GF_RETURN_IF_ERROR(LearnAddresses());
  GF_RETURN_IF_ERROR(OpenDevicePath());
  messages_ = std::make_unique<Messages>(*transport_.fabric);
  DriverArgs driver;
  driver.fabric = transport_.fabric.get();
  driver.executor = executor_.get();
  driver.messages = messages_.get();
  driver.clock = clock_.get();
  driver.on_tick = drain_recorder_;
  driver.outer = executor_.get();
  if (device_path_ != nullptr) driver.outer = &device_path_->collective();
  WatchdogOptions watchdog;
  watchdog.timeout_seconds = options_.timeout_seconds;
  watchdog.stall_check_seconds = options_.stall_check_seconds;
  watchdog.logger = logger_.get();
  driver_ = std::make_unique<Driver>(driver, watchdog);
  if (device_path_ != nullptr) driver_->Add(device_path_.get());
  progress_ =
      std::make_unique<Progress>(*driver_, *clock_, spin_, completions_);
  CallsArgs calls;
  calls.fabric = transport_.fabric.get();
  calls.executor = executor_.get();
  calls.messages = messages_.get();
  calls.progress = progress_.get();
  calls.completions = &completions_;
  calls.clock = clock_.get();
  calls.start = [this](const CollectiveCall& call, Done done) {
    if (device_path_ != nullptr) return device_path_->Start(call, done);
    executor_->Start(call, done);
    return Status();
  };
  calls_ = std::make_unique<Calls>(std::move(calls));
  return MeasureBetweenHosts();
}

// Tells the other ranks, which wait for this one, why it could not open.
void CommunicatorCore::TellWhy(const Status& why) {
  // If there is a progress thread, a call has failed, and the others know that.
  if (progress_ != nullptr) return;
  Fabric& fabric = *transport_.fabric;
  fabric.Fail(
      Status(why.code(), StrCat("rank ", options_.rank, " did not open its ",
                                "communicator: ", why.message())));
  fabric.Poll();
  fabric.Leave(milliseconds(2000));
}

// The choice of algorithms depends on the measured numbers, so they change
// before the first call begins, or never. An allreduce by a named algorithm is
// not the only call.
Status CommunicatorCore::MeasureBetweenHosts() {
  if (options_.size == 1 || group().topology.IsOneHost()) return Status();
  const Result<CostModels> costs = MeasureLinks(
      group(), [this](const CollectiveCall& call) { return calls_->Run(call); },
      *clock_);
  if (!costs.ok()) return costs.status();
  progress_->Do([&] {
    executor_->SetCosts(costs.value());
    transport_.fabric->LineMeasured(LineOf(costs.value().alone.across));
  });
  if (!logger_->Enabled(LogLevel::kInfo)) return Status();
  const auto link = [](const LinkModel& model) {
    return StrCat("latency ", model.latency_seconds * 1e6, " us, ",
                  model.message_seconds * 1e6, " us per message, ",
                  1e-9 / model.seconds_per_byte, " GB/s");
  };
  logger_->Log(
      LogLevel::kInfo,
      StrCat("links between hosts (a line of ",
             LineOf(costs.value().alone.across),
             " Mb/s, 0 if unknown): ", link(costs.value().together.across),
             "; inside a host: ", link(costs.value().together.inside),
             "; with one rank at work: ", link(costs.value().alone.across),
             "; ", link(costs.value().alone.inside), "; ",
             costs.value().together.across.waiting_seconds * 1e6,
             " us more a round while the other ranks wait"));
  return Status();
}

Result<CallCost> CommunicatorCore::MeasuredCallCost(DType pool, DType wire) {
  DevicePath* const device = device_path_.get();
  const bool by_nccl = device != nullptr && device->by_nccl();
  // The executor's times hardly depend on the type.
  if (!by_nccl) pool = wire = DType::kFloat32;
  const auto types = std::pair(pool, wire);
  const auto known = call_costs_.find(types);
  if (known != call_costs_.end()) return known->second;
  const Result<CallCost> cost =
      device != nullptr
          ? MeasureOnDevice({device, calls_.get(), progress_.get(),
                             transport_.fabric.get(), clock_.get()},
                            pool, wire)
          : MeasureCallCost(
                [this](const CollectiveCall& call) {
                  return calls_->Run(call);
                },
                *clock_);
  if (!cost.ok()) return cost.status();
  call_costs_.emplace(types, cost.value());
  if (logger_->Enabled(LogLevel::kInfo)) {
    logger_->Log(LogLevel::kInfo,
                 StrCat("measured allreduce",
                        device != nullptr
                            ? StrCat(" on ", device->device()->description())
                            : "",
                        ": latency ", cost.value().latency_seconds * 1e6,
                        " us, bandwidth ", 1e-9 / cost.value().seconds_per_byte,
                        " GB/s"));
  }
  return cost;
}

// Until now a rank knows only the addresses of its neighbours. It learns those
// of all other ranks through them.
Status CommunicatorCore::LearnAddresses() {
  LinkSource* const source = transport_.fabric->source();
  if (source == nullptr) return Status();
  const OpeningArgs opening{
      executor_.get(), transport_.fabric.get(), clock_.get(),
      clock_->Now() + FromSeconds(options_.join_timeout_seconds)};
  const auto addresses = GatherTexts(opening, transport_.address);
  return addresses.ok() ? source->Learn(addresses.value()) : addresses.status();
}

// Links inside a host stay as they are, but one-sided algorithms need the
// memory of all ranks of the host.
void CommunicatorCore::ShareNoMemory(int culprit) {
  if (!group().hosts_share) return;
  transport_.arena = nullptr;
  executor_->SetNotSharing();
  executor_->SetCosts(TypicalCostModels(false));
  // It is slower for all ranks, so one of them warns.
  logger_->Log(options_.rank == 0 ? LogLevel::kWarning : LogLevel::kInfo,
               StrCat("collectives use messages inside hosts, since rank ",
                      culprit, " does not share memory with all of its host"));
}

// If a single rank cannot take part, no rank places messages.
void CommunicatorCore::PlaceNothing(int culprit) {
  if (!group().all_place && !group().hosts_place) return;
  executor_->SetNoPlaces();
  logger_->Log(LogLevel::kInfo,
               StrCat("collectives write to no peer's memory, since rank ",
                      culprit, " cannot do so with all ranks concerned"));
}

// Finds out where the buffers are, on this rank and on the others.
Status CommunicatorCore::OpenDevicePath() {
  OpeningArgs opening{executor_.get(), transport_.fabric.get(), clock_.get(),
                      Clock::Time{}};
  if (device_ == nullptr && options_.device != "cpu") {
    Result<std::shared_ptr<Device>> device = std::shared_ptr<Device>();
    // A driver takes a while to make the first context, and to compile kernels
    // for this device if need be.
    RunBeside(opening, [&] { device = OpenDevice(options_, local_.rank); });
    if (!device.ok()) return device.status();
    device_ = std::move(device).value();
  }
  std::shared_ptr<const NcclApi> nccl;
  RankFacts facts;
  if (device_ != nullptr) {
    facts = DevicePath::FactsOf(options_, *device_, *logger_, &nccl);
  }
  // Ranks that met at a rendezvous have compared these line by line. This check
  // holds for ranks that were joined in any way.
  facts.settings =
      static_cast<std::int64_t>(AgreementHash(AgreementText(options_)));
  facts.shares = transport_.shares ? 1 : 0;
  const bool places = group().all_place || group().hosts_place;
  facts.places = places && transport_.places_all ? 1 : 0;
  opening.deadline = clock_->Now() + FromSeconds(options_.join_timeout_seconds);
  const Result<std::vector<RankFacts>> ranks = ExchangeFacts(opening, facts);
  if (!ranks.ok()) return ranks.status();
  if (const int rank = RankThatDoesNotShare(ranks.value()); rank >= 0) {
    ShareNoMemory(rank);
  }
  if (const int rank = RankWithoutPlaces(ranks.value()); rank >= 0) {
    PlaceNothing(rank);
  }
  if (Mixed(ranks.value())) executor_->SetMixedDtypes();
  if (device_ == nullptr) return Status();
  DevicePathArgs args;
  args.options = &options_;
  args.arena = transport_.arena;
  args.places = transport_.places;
  args.opening = opening;
  args.group = &group();
  args.logger = logger_.get();
  args.recorder = recorder_.get();
  Result<std::unique_ptr<DevicePath>> path =
      DevicePath::Create(args, device_, std::move(nccl), ranks.value());
  if (!path.ok()) return path.status();
  device_path_ = std::move(path).value();
  return Status();
}

CommunicatorCore::~CommunicatorCore() {
  if (progress_ != nullptr) {
    progress_->Stop();
    if (calls_ != nullptr) calls_->Close();
    if (driver_->InFlight()) {
      transport_.fabric->Fail(
          Status(StatusCode::kAborted,
                 StrCat("rank ", options_.rank,
                        " closed its communicator with collectives in "
                        "flight")));
    }
    // Pending calls end here, while the callers that wait for them still exist.
    if (!transport_.fabric->status().ok()) driver_->EndAll();
    CloseDevicePath();
    transport_.fabric->Leave(milliseconds(2000));
    messages_->FailAll(
        Status(StatusCode::kAborted, "the communicator was closed"));
    transport_.fabric.reset();
    // The progress thread has stopped, so the completions that it would have
    // run are run here.
    for (const Completions::Task& task : completions_.Take()) {
      task.tell();
      task.told();
    }
  }
  if (drain_recorder_) drain_recorder_();
  shared_.clear();
}

void CommunicatorCore::CloseDevicePath() {
  if (device_path_ == nullptr || device_path_->Close()) return;
  LeaveBehind(device_path_.release());
  // The staging memory is in the arena, which must then stay as well.
  LeaveBehind(
      std::make_unique<decltype(transport_.keep_alive)>(transport_.keep_alive)
          .release());
}

void CommunicatorCore::Fail(const Status& why) {
  transport_.fabric->Fail(why);
  driver_->EndAll();
}

void CommunicatorCore::Abort(const Status& why) {
  progress_->Do([&] {
    if (transport_.fabric == nullptr) return;
    Fail(Status(why.code(), StrCat("rank ", options_.rank,
                                   " gave the job up: ", why.message())));
  });
}

Result<BufferView> CommunicatorCore::AllocateShared(std::size_t bytes) {
  Result<BufferView> view = Status(StatusCode::kInternal, "not run");
  progress_->Do([&] {
    Result<PoolMemory> memory = PoolMemory::Allocate(
        transport_.arena, transport_.places, std::max<std::size_t>(bytes, 1));
    if (!memory.ok()) {
      view = memory.status();
      return;
    }
    view = memory.value().view();
    shared_[view.value().data] = std::move(memory).value();
  });
  return view;
}

void CommunicatorCore::FreeShared(const std::byte* data) {
  progress_->Do([&] { shared_.erase(data); });
}

bool CommunicatorCore::GradientsAreFree(GroupId group) {
  bool free = false;
  progress_->Do([&] { free = !gradients_taken_.contains(group); });
  return free;
}

void CommunicatorCore::TakeGradients(GroupId group) {
  progress_->Do([&] { gradients_taken_.insert(group); });
}

void CommunicatorCore::LeaveGradients(GroupId group) {
  progress_->Do([&] { gradients_taken_.erase(group); });
}

GroupId CommunicatorCore::NextOwnGroup() {
  GroupId id = 0;
  progress_->Do([&] { id = next_own_group_; });
  return id;
}

void CommunicatorCore::OwnGroupTaken(GroupId id) {
  progress_->Do([&] { next_own_group_ = std::max(next_own_group_, id + 1); });
}

}  // namespace gradientflow
