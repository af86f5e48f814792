#pragma once

#include <utility>

#include "gradientflow/base/clock.h"
#include "gradientflow/communicator/agreement.h"
#include "gradientflow/communicator/transport.h"
#include "gradientflow/config/options.h"
#include "gradientflow/observe/stderr_logger.h"

namespace gradientflow::testing {

// What a program needs to Join() a job without a communicator, when it
// exchanges cards in its own way.
struct Joining {
  Joining(const Options& of, Exchange exchange)
      : options(of), logger(LogLevel::kWarning, of.rank) {
    args.options = &options;
    args.agreement = AgreementText(options);
    args.clock = &clock;
    args.logger = &logger;
    args.exchange = std::move(exchange);
  }
  Joining(const Joining&) = delete;
  Joining& operator=(const Joining&) = delete;

  const Options options;
  const SteadyClock clock;
  StderrLogger logger;
  JoinArgs args;
};

}  // namespace gradientflow::testing
