#pragma once

#include <c10/util/SmallVector.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "group.h"
#include "lent.h"
#include "results.h"

namespace gft {

// One operation of torch's: one or more calls of the library that are under way
// together, the memory lent to them, and what users wait on.
//
// The thread that makes it lends memory, starts calls and ends with Commit();
// after that the work is thread-safe. While a call is under way the library
// holds the work too, so the user need not keep it.
class Work final : public c10d::Work {
 public:
  using Milliseconds = std::chrono::milliseconds;

  struct Facts {
    c10d::OpType type = c10d::OpType::UNKNOWN;
    const char* title = "";  // "gradientflow:all_reduce"; static.
    std::string detail;      // "SUM", "root 2".
    uint64_t sequence = 0;
    Milliseconds timeout{0};
  };
  // Profilers and texts show `inputs`; the future gives `results`.
  Work(std::shared_ptr<Group> group, const Facts& facts,
       std::vector<at::Tensor> inputs, std::vector<at::Tensor> results);
  ~Work() override;

  // -- Building --
  Lent& lent() { return lent_; }
  Results& results() { return results_; }
  // Starts a call, whose `group` is set here. Throws if the call is wrong;
  // calls that were started before go on.
  void Start(gf_call call);
  void Send(const void* data, size_t bytes, int peer, uint32_t tag);
  // `peer` may be GF_ANY_RANK.
  void Receive(void* data, size_t bytes, int peer, uint32_t tag);
  // `next` runs when all calls so far have succeeded, on the thread that
  // drives; it may start more calls. If it throws, the exception is the work's
  // error.
  void Then(std::function<void(Work&)> next) { next_ = std::move(next); }
  // All calls are started.
  void Commit();

  // -- c10d::Work --
  bool isCompleted() override { return done_.load(); }
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  // Drives the session on this thread. If `timeout` passes, the wait fails but
  // the operation goes on. If the operation's own time-out passes, the job
  // ends, since the operation's memory is lent. Throws the operation's error.
  bool wait(Milliseconds timeout = kNoTimeout) override;
  void synchronize() override {}  // Results are complete, on any stream.
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return facts_.sequence; }
  Milliseconds getTimeout() const { return facts_.timeout; }
  // Milliseconds; 0 while the operation is under way.
  float getDuration() const override;
  uint64_t getCompletionKey() const { return key_; }  // Never used twice.

  // Nobody will wait for it again, not even the end of its group.
  void GiveUp();
  // Drives until the operation or the time is over; returns whether the
  // operation is.
  bool WaitUntil(std::chrono::steady_clock::time_point deadline);
  // "all_reduce (SUM) of Float[32, 32], number 7 of rank 1", for texts.
  std::string Description() const;

 private:
  using Future = Results::Future;
  using Clock = std::chrono::steady_clock;

  // Counts a call and returns the library's reference to this work.
  void* Hold();
  void Release(gf_status started, uint64_t ticket);
  static void OnDone(void* self, gf_status status, const char* message);
  void CallEnded();
  void Fail(std::exception_ptr error, bool mismatch = false);
  // Throws the error, if there is one.
  void Rethrow();
  void Complete();
  void Mark(const Future& future);
  void Finish();
  bool IsMarkingHere() const;
  bool IsReceive() const;
  bool IsMismatch(gf_status status) const;
  std::vector<uint64_t> Tickets() const;
  // The operation's time is up: ends the job.
  void Expire();

  const std::shared_ptr<Group> group_;
  const uint64_t key_;
  const Facts facts_;
  const Clock::time_point begun_;
  const Clock::time_point deadline_;
  Lent lent_;
  const std::vector<at::Tensor> inputs_;
  Results results_;
  std::function<void(Work&)> next_;
  int32_t source_ = -1;

  std::atomic<int> calls_{1};  // Under way, and one for Commit().
  std::atomic<bool> done_{false};
  std::atomic<int64_t> took_{0};     // Nanoseconds.
  std::atomic<bool> counted_{true};  // By the group.
  bool ended_ = false;  // Results are there. With mutex_, like all below.
  std::exception_ptr error_;
  bool mismatch_ = false;  // The ranks' calls do not match.
  c10::SmallVector<uint64_t, 2> tickets_;
  Future future_;
  bool for_python_ = false;  // The future's callbacks may block.
};

}  // namespace gft
