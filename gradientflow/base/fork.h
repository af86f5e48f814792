#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

// What fork() must not hand down. A connection whose descriptor lives on in a
// child stays open after this process has died, and a shared mapping lets the
// child write into the sums of other processes. Therefore, before fork()
// returns in the child, all descriptors that are registered here are closed
// there, and registered memory becomes the child's own copy.
//
// vfork() and posix_spawn() run none of this. Their children exec(), which
// closes descriptors (all of ours are close-on-exec) and drops mappings. A bare
// clone() does not run it either.
namespace gradientflow {

namespace internal {
// Number of forks from the first process that registered anything to this one.
extern std::atomic<std::uint32_t> fork_depth;
}  // namespace internal

// Remembers the process that it was made in.
class ProcessMark {
 public:
  ProcessMark();
  // Returns whether this process was forked from that one, directly or not.
  // Costs a load.
  bool forked() const {
    return depth_ != internal::fork_depth.load(std::memory_order_relaxed);
  }

 private:
  std::uint32_t depth_;
};

// Forks close `fd` from now on.
void CloseInForks(int fd);
// Closes `fd`; forks need not close it any more.
void CloseHere(int fd);
// Forks need not close `fd` any more, since its owner is about to.
void KeepInForks(int fd);

// Makes `data`, which is mapped shared from the start of `fd`, private in
// forks: a fork reads what the file holds, until it writes to the memory. `fd`
// stays open as long.
void PrivateInForks(void* data, std::size_t bytes, int fd);
// Unmaps the memory; forks need not care about it any more.
void UnmapHere(void* data, std::size_t bytes);

// For an object that must not be destroyed. A fork has inherited it, and
// threads that do not exist in the fork may hold locks in it or have left data
// half changed; or a device may still use its memory. This is a leak, but leak
// checkers find the object reachable.
void LeaveBehind(const void* object);

}  // namespace gradientflow
