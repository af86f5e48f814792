#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

// What fork() must not hand down. A connection's descriptor that lives on in a
// child keeps the connection open after this process has died, and a shared
// mapping lets the child write into other processes' sums. So before fork()
// returns in the child, all descriptors registered here are closed there, and
// registered memory is the child's own copy.
//
// vfork() and posix_spawn() run none of this: their children exec(), which
// closes descriptors (all of ours are close-on-exec) and drops mappings. Nor
// does a bare clone().
namespace gradientflow {

namespace internal {
// How many forks led from the first process that registered anything to this
// one.
extern std::atomic<std::uint32_t> fork_depth;
}  // namespace internal

// Remembers in which process it was made.
class ProcessMark {
 public:
  ProcessMark();
  // Whether this process has been forked off that one, however many times
  // removed. Costs a load.
  bool forked() const {
    return depth_ != internal::fork_depth.load(std::memory_order_relaxed);
  }

 private:
  std::uint32_t depth_;
};

// From now on forks close `fd`.
void CloseInForks(int fd);
// Closes `fd`, and forks need not.
void CloseHere(int fd);

// `data`, mapped shared from the start of `fd`, is private in forks: it reads
// as the file does, until the fork writes to it. `fd` stays open as long.
void PrivateInForks(void* data, std::size_t bytes, int fd);
// Unmaps it, and forks need not care.
void UnmapHere(void* data, std::size_t bytes);

// For what a fork inherited and cannot take apart, since locks in it may be
// held, and data half changed, by threads that the fork does not have. A leak,
// but one that leak checkers find reachable.
void LeaveBehind(const void* object);

}  // namespace gradientflow
