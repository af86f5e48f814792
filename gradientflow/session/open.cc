#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/config/settings_text.h"
#include "gradientflow/observe/null_recorder.h"
#include "gradientflow/observe/stderr_logger.h"
#include "gradientflow/observe/timeline.h"
#include "gradientflow/session/agreement.h"
#include "gradientflow/session/guarded_session.h"
#include "gradientflow/session/session_impl.h"

// The composition root: who is who, by the options.
namespace gradientflow {
namespace {

// Reports and states tell tensors by their names.
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

Result<SessionImpl::Parts> MakeParts(const Options& options,
                                     const std::vector<TensorSpec>& tensors) {
  SessionImpl::Parts parts;
  parts.options = options;
  if (options.rank_problem.empty()) {
    if (parts.options.rank < 0) parts.options.rank = 0;
    if (parts.options.size < 0) parts.options.size = 1;
  }
  GF_RETURN_IF_ERROR(parts.options.Validate());
  parts.tensors = tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name.empty()) parts.tensors[i].name = StrCat("tensor", i);
  }
  GF_RETURN_IF_ERROR(CheckNames(parts.tensors));
  parts.clock = std::make_unique<SteadyClock>();
  parts.logger =
      std::make_unique<StderrLogger>(options.log_level, parts.options.rank);
  if (!options.rank_problem.empty()) {
    parts.logger->Log(LogLevel::kWarning,
                      StrCat("ignored, as the program says who this process "
                             "is: ",
                             options.rank_problem));
  }
  if (options.timeline.empty()) {
    parts.recorder = std::make_unique<NullRecorder>();
    return parts;
  }
  Timeline::Config config;
  config.path = options.timeline;
  config.rank = parts.options.rank;
  Result<std::unique_ptr<Timeline>> timeline = Timeline::Open(config);
  if (!timeline.ok()) return timeline.status();
  parts.drain_recorder = [raw = timeline.value().get(),
                          logger = parts.logger.get(), told = false]() mutable {
    const Status status = raw->Drain();
    if (!status.ok() && !std::exchange(told, true)) {
      logger->Log(LogLevel::kWarning, status.message());
    }
  };
  parts.recorder = std::move(timeline).value();
  return parts;
}

Result<std::unique_ptr<Session>> Guarded(
    Result<std::unique_ptr<SessionImpl>> session) {
  if (!session.ok()) return session.status();
  return Guard(std::move(session).value());
}

}  // namespace

Result<std::unique_ptr<Session>> OpenOver(
    Transport transport, const Options& options,
    const std::vector<TensorSpec>& tensors, std::shared_ptr<Device> device) {
  Result<SessionImpl::Parts> parts = MakeParts(options, tensors);
  if (!parts.ok()) return parts.status();
  parts.value().device = std::move(device);
  return Guarded(
      SessionImpl::Create(std::move(parts).value(), std::move(transport)));
}

Result<std::unique_ptr<Session>> Session::Open(
    const Options& options, const std::vector<TensorSpec>& tensors,
    const Exchange& exchange) {
  Options adapted = options;
  // Never looked up.
  if (exchange && adapted.rendezvous.empty()) adapted.rendezvous = "exchange:1";
  Result<SessionImpl::Parts> made = MakeParts(adapted, tensors);
  if (!made.ok()) return made.status();
  SessionImpl::Parts parts = std::move(made).value();
  parts.logger->Log(LogLevel::kInfo, ChangedSettings(parts.options));
  JoinArgs join;
  join.options = &parts.options;
  join.agreement = AgreementText(parts.options, parts.tensors);
  join.clock = parts.clock.get();
  join.logger = parts.logger.get();
  join.exchange = exchange;
  Result<Transport> transport = Join(join);
  if (!transport.ok()) return transport.status();
  return Guarded(
      SessionImpl::Create(std::move(parts), std::move(transport).value()));
}

}  // namespace gradientflow
