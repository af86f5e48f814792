#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "tests/faults/board.h"

namespace gradientflow::faults {

// Returns "127.0.0.1:port" with a port that is free at this moment, where ranks
// can meet.
Result<std::string> LocalRendezvous();

// Ranks as child processes, in a process group of their own. They die with
// this process. REQUIRES: no other threads in this process.
class Processes {
 public:
  // Runs `rank_main(rank)` in `ranks` children. Each exits with the result, and
  // runs no destructors and no atexit() functions.
  Processes(int ranks, const std::function<int(int rank)>& rank_main);
  ~Processes();  // Kills and reaps what is left.
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  pid_t pid(int rank) const { return children_[rank].pid; }
  void Signal(int rank, int signal);
  // Waits until `rank` has ended, or until `deadline_ns`. Returns whether it
  // has ended.
  bool WaitFor(int rank, std::int64_t deadline_ns);
  bool ended(int rank) { return WaitFor(rank, 0); }
  // The status from waitpid(). REQUIRES: ended(rank).
  int wait_status(int rank) const { return children_[rank].wait_status; }
  // Whether processes of the group are left, apart from our own zombies.
  bool AnyLeft() const;

 private:
  struct Child {
    pid_t pid = -1;
    int pidfd = -1;
    bool reaped = false;
    int wait_status = 0;
  };
  std::vector<Child> children_;
  pid_t group_ = 0;
};

}  // namespace gradientflow::faults
