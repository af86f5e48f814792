#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/communicator/introduction.h"
#include "gradientflow/communicator/transport.h"
#include "gradientflow/config/options.h"
#include "tests/faults/joining.h"
#include "transports/rendezvous/rendezvous.h"

namespace {

// What a rank that has met others, and reaches nobody, learns of the one that
// ends.
std::string Seen(gradientflow::RendezvousWatch& watch,
                 const gradientflow::Clock& clock) {
  const auto give_up = clock.Now() + std::chrono::seconds(20);
  gradientflow::Status seen;
  while (seen.ok() && clock.Now() < give_up) {
    seen = watch.Look();
    ::poll(nullptr, 0, 20);
  }
  return seen.message();
}

}  // namespace

// dies_after_meeting [look]
//
// A rank that ends when it has met the others, before it connects to any. It
// takes its settings from the environment, and says "met" as it ends. With
// `look` it goes on until another rank has ended, and says what it has seen.
int main(int argc, char**, char** variables) {
  using namespace gradientflow;
  const auto options = Options::FromEnv(variables);
  if (!options.ok()) return std::puts(options.status().message().c_str()), 1;
  // The card of such a rank, whose listeners are closed again by now.
  std::string card;
  const testing::Joining joining(options.value(), [&](const std::string& mine) {
    card = mine;
    return Result<std::vector<std::string>>(Status(StatusCode::kAborted, ""));
  });
  static_cast<void>(Join(joining.args));
  const Clock& clock = joining.clock;
  std::unique_ptr<RendezvousWatch> watch;
  RendezvousOptions rendezvous;
  rendezvous.address = options.value().rendezvous;
  rendezvous.secret =
      JobSecret(options.value().job_token, options.value().job_run);
  rendezvous.rank = options.value().rank;
  rendezvous.size = options.value().size;
  rendezvous.deadline = clock.Now() + FromSeconds(60);
  rendezvous.watch = &watch;
  const Introduce introduce = [](const std::vector<std::string>& cards,
                                 const std::vector<int>& ranks) {
    return IntroduceRanks({"tcp", 2, false}, cards, ranks);
  };
  const auto met = Meet(rendezvous, card, introduce, clock);
  if (met.ok() && argc > 1) return std::puts(Seen(*watch, clock).c_str()), 0;
  std::puts(met.ok() ? "met" : met.status().message().c_str());
  std::fflush(stdout);
  ::_exit(met.ok() ? 0 : 1);  // As if it were killed.
}
