#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace gradientflow::faults {

// Finds what the children of `parent` listen on, connects, and talks nonsense.
class Scanner {
 public:
  explicit Scanner(pid_t parent) : parent_(parent) {}
  ~Scanner();
  Scanner(const Scanner&) = delete;
  Scanner& operator=(const Scanner&) = delete;

  // How many doors opened.
  std::size_t KnockAtAllPorts();
  // Connects `times` to each, says nothing, and stays. How many connections.
  std::size_t StandAtAllPorts(int times);

 private:
  bool Knock(std::uint16_t port, bool ipv6);
  void Stand(std::uint16_t port, bool ipv6);

  const pid_t parent_;
  std::mt19937 random_{5};
  std::vector<int> open_;  // Some are left hanging.
};

// Sends random bytes over every TCP connection of this process. How many.
int BabbleOnAllConnections();

// Flips the counters at the head of the first FIFO of each arena that a peer
// shares with this process; `mine` lies in its own. How many.
int BreakPeersFifos(const void* mine, std::size_t heap_offset);

}  // namespace gradientflow::faults
