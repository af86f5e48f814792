#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gradientflow/base/mutex.h"

namespace gradientflow {

// The order in which communicators of this process give their calls to one
// device: that in which the calls came. NCCL may take its time to accept a
// call, on a thread of its own, so calls of two communicators that are given to
// it side by side reach the device in any order, and in another one on each
// rank. If the device then has no room for the kernels of both, all ranks wait
// for each other. So a communicator gives NCCL a call when all calls that came
// before it have been accepted.
//
// A user is one communicator. A call of one that must wait for something else,
// or that takes too long, does not hold up the others: see StepAside() and
// Overtake(). Any thread; a user's calls come one at a time.
class LaunchOrder {
 public:
  using User = const void*;

  // The order of that device (Device::unique_id()), which all users share.
  static std::shared_ptr<LaunchOrder> Of(std::uint64_t device);

  LaunchOrder();
  LaunchOrder(const LaunchOrder&) = delete;
  LaunchOrder& operator=(const LaunchOrder&) = delete;

  void Enter(User user) GF_EXCLUDES(mutex_);
  // The user goes, with all of its calls.
  void Exit(User user) GF_EXCLUDES(mutex_);
  // Those that have entered.
  std::size_t users() const GF_EXCLUDES(mutex_);

  // A call has come. Calls of one user are given to NCCL in the order in which
  // they came.
  void Join(User user) GF_EXCLUDES(mutex_);
  // Returns whether the user's first call may be given to NCCL. Ends a
  // StepAside().
  bool May(User user) GF_EXCLUDES(mutex_);
  // NCCL has accepted the user's first call, or it needs no NCCL.
  void Leave(User user) GF_EXCLUDES(mutex_);
  // The user's first call cannot be given to NCCL for another reason, or the
  // user is aborted: no other waits for it, until May() asks for it again.
  void StepAside(User user) GF_EXCLUDES(mutex_);
  // The user's first call has waited for too long: those in front of it step
  // aside. NCCL may accept a first call only when all ranks have made it.
  void Overtake(User user) GF_EXCLUDES(mutex_);

 private:
  struct Member {
    User user;
    bool aside;
  };
  Member* Find(User user) GF_REQUIRES(mutex_);
  // The first call of a user that has not stepped aside; null if there is none.
  User First() GF_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::vector<Member> members_ GF_GUARDED_BY(mutex_);
  std::vector<User> line_ GF_GUARDED_BY(mutex_);  // By call, as they came.
};

}  // namespace gradientflow
