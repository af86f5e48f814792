#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "transports/tcp/addresses.h"
#include "transports/tcp/hello.h"
#include "transports/tcp/socket.h"

namespace gradientflow {

// One lane towards a peer that listens. It tries the peer's addresses, each a
// little after the one before, repeats failed attempts, and keeps the first
// connection that is answered. NOT thread-safe.
class OutgoingLane {
 public:
  struct Interest {  // For poll().
    int fd;
    short events;
    std::size_t attempt;
  };

  // `hello` is what to send. `candidates` are the peer's addresses, best first.
  OutgoingLane(const LaneHello& hello,
               const std::vector<SocketAddress>& candidates,
               std::size_t buffer_bytes, Clock::Time now);

  bool connected() const { return kept_.has_value(); }
  // REQUIRES connected(). May be called once.
  Socket TakeSocket();
  int peer() const { return static_cast<int>(hello_.to); }

  // Starts the attempts that are due. An error ends the set-up.
  Status Start(Clock::Time now);
  // When Start() has something to do next; nothing if it has to wait for an
  // event.
  std::optional<Clock::Time> due() const;
  void AddInterests(std::vector<Interest>* interests) const;
  // The descriptor of the attempt is ready. An error ends the set-up.
  Status OnReady(std::size_t attempt, Clock::Time now);

  // The last thing that went wrong: "10.0.0.2:4321: Connection refused".
  const std::string& trouble() const { return trouble_; }

 private:
  struct Attempt {
    SocketAddress to;
    Socket socket;  // Valid while the attempt is under way.
    bool greeted = false;
    HelloReader reader;
    Clock::Time start_at{};
    Clock::Time backoff{};
  };

  void Abandon(Attempt& attempt, const std::string& why, Clock::Time now);
  Status OnWelcome(Attempt& attempt, Clock::Time now);

  const LaneHello hello_;
  const std::size_t buffer_bytes_;
  std::vector<Attempt> attempts_;
  std::optional<Socket> kept_;
  std::string trouble_;
};

}  // namespace gradientflow
