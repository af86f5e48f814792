#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace gradientflow::faults {

// Finds the ports on which the children of `parent` listen, connects, and sends
// nonsense.
class Scanner {
 public:
  explicit Scanner(pid_t parent) : parent_(parent) {}
  ~Scanner();
  Scanner(const Scanner&) = delete;
  Scanner& operator=(const Scanner&) = delete;

  // Returns how many ports accepted.
  std::size_t KnockAtAllPorts();
  // Connects `times` to each port, sends nothing, and stays. Returns the number
  // of connections.
  std::size_t StandAtAllPorts(int times);

 private:
  bool Knock(std::uint16_t port, bool ipv6);
  void Stand(std::uint16_t port, bool ipv6);

  const pid_t parent_;
  std::mt19937 random_{5};
  std::vector<int> open_;  // Some stay open.
};

// Sends random bytes over every TCP connection of this process. Returns their
// number.
int BabbleOnAllConnections();

// Changes the counters at the head of the first FIFO of each arena that a peer
// shares with this process; `mine` lies in its own arena. Returns how many.
int BreakPeersFifos(const void* mine, std::size_t heap_offset);

}  // namespace gradientflow::faults
