#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/secret.h"
#include "gradientflow/base/status.h"
#include "transports/tcp/addresses.h"
#include "transports/tcp/hello.h"
#include "transports/tcp/socket.h"

namespace gradientflow {

// All addresses of a peer refuse, as those of a process that has ended do: one
// that runs listens before others know its address.
struct PeerRefusal {
  int peer = 0;
  Clock::Time since{};      // When the last of them began to,
  Clock::Time until{};      // and when each of them was last seen to.
  bool certain = false;     // Nobody but the peer can have refused.
  bool on_the_way = false;  // WasRefusedOnTheWay(): it may well run.
  std::string trouble;

  // How long they have refused, of the time after `begin`.
  Clock::Time Lasted(Clock::Time begin = Clock::Time::min()) const {
    return until - std::max(since, begin);
  }
};
// A process whose addresses all refuse for this long has ended. The time is
// longer than a retransmission, by which the last bytes of a peer that has all
// its lanes, and no longer listens, may be late.
inline constexpr std::chrono::milliseconds kRefusedTooLong(500);

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

  struct Args {
    LaneHello hello = {};  // What to send, without a nonce.
    Bits256 secret = {};
    std::size_t buffer_bytes = 0;
    // Whether a connection that is refused was meant for the peer for certain.
    // If not, a firewall or another host with that address may refuse it.
    bool reachable = true;
  };
  // `candidates` are the peer's addresses, best first.
  OutgoingLane(const Args& args, const std::vector<SocketAddress>& candidates,
               Clock::Time now);

  bool connected() const { return kept_.has_value(); }
  // REQUIRES connected().
  const Socket& socket() const { return *kept_; }
  // REQUIRES connected(). May be called once.
  Socket TakeSocket();
  int peer() const { return static_cast<int>(args_.hello.to); }
  // REQUIRES connected(). The challenge to the peer on that connection.
  const Bits256& nonce() const { return kept_nonce_; }

  // Starts the attempts that are due. An error ends the set-up.
  Status Start(Clock::Time now);
  // When Start() has something to do next; nothing if it has to wait for an
  // event.
  std::optional<Clock::Time> due() const;
  void AddInterests(std::vector<Interest>* interests) const;
  // The descriptor of the attempt is ready. An error ends the set-up.
  Status OnReady(std::size_t attempt, Clock::Time now);

  // Returns nothing while an address may still answer.
  std::optional<PeerRefusal> refusal() const;

  // What keeps the lane from being connected: "10.0.0.2:4321: Connection
  // refused", or "10.0.0.2:4321: no answer".
  std::string Trouble() const;

 private:
  struct Attempt {
    SocketAddress to;
    Socket socket;  // Valid while the attempt is under way.
    bool greeted = false;
    Bits256 nonce = {};  // The challenge to the peer.
    HelloReader reader;
    Clock::Time start_at{};
    bool failed = false;  // At least once.
    Clock::Time backoff{};
    std::optional<Clock::Time> refused_since;
    Clock::Time refused_at{};  // The last time.
    bool on_the_way = false;   // See PeerRefusal. Then, too.
  };

  void NoteRefusal(Attempt& attempt, int error, Clock::Time now);
  void Abandon(Attempt& attempt, const std::string& why, Clock::Time now);
  Status Greet(Attempt& attempt, Clock::Time now);
  Status OnWelcome(Attempt& attempt, Clock::Time now);

  const Args args_;
  std::vector<Attempt> attempts_;
  bool reached_ = false;  // An attempt has been accepted.
  std::optional<Socket> kept_;
  Bits256 kept_nonce_ = {};
  std::string trouble_;
};

}  // namespace gradientflow
