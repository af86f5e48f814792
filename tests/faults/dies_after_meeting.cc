#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/communicator/agreement.h"
#include "gradientflow/communicator/introduction.h"
#include "gradientflow/communicator/transport.h"
#include "gradientflow/config/options.h"
#include "gradientflow/observe/stderr_logger.h"
#include "transports/rendezvous/rendezvous.h"

// A rank that ends when it has met the others, before it connects to any. It
// takes its settings from the environment, and says "met" as it ends.
int main(int, char**, char** variables) {
  using namespace gradientflow;
  const auto options = Options::FromEnv(variables);
  if (!options.ok()) return std::puts(options.status().message().c_str()), 1;
  const SteadyClock clock;
  StderrLogger logger(LogLevel::kWarning, options.value().rank);
  // The card of such a rank, whose listeners are closed again by now.
  std::string card;
  JoinArgs join;
  join.options = &options.value();
  join.agreement = AgreementText(options.value());
  join.clock = &clock;
  join.logger = &logger;
  join.exchange = [&](const std::string& mine) {
    card = mine;
    return Result<std::vector<std::string>>(Status(StatusCode::kAborted, ""));
  };
  static_cast<void>(Join(join));
  std::unique_ptr<RendezvousWatch> watch;
  RendezvousOptions rendezvous;
  rendezvous.address = options.value().rendezvous;
  rendezvous.secret =
      JobSecret(options.value().job_token, options.value().job_run);
  rendezvous.rank = options.value().rank;
  rendezvous.size = options.value().size;
  rendezvous.deadline = clock.Now() + FromSeconds(60);
  if (!rendezvous.address.starts_with("file:")) rendezvous.watch = &watch;
  const Introduce introduce = [](const std::vector<std::string>& cards,
                                 const std::vector<int>& ranks) {
    return IntroduceRanks({"tcp", 2, false}, cards, ranks);
  };
  const auto met = Meet(rendezvous, card, introduce, clock);
  std::puts(met.ok() ? "met" : met.status().message().c_str());
  return met.ok() ? 0 : 1;
}
