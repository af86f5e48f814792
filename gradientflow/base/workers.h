#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "gradientflow/base/mutex.h"
#include "gradientflow/base/status.h"

namespace gradientflow {

// A few threads that share work which has been cut into parts beforehand:
//
//   Run(count, part)   the caller and the helpers take parts 0, 1, 2, ... one
//                      at a time, until none is left
//
// Any thread may get any part. What a part does must therefore depend on its
// number only, and then the results have the same bits with any number of
// threads. A helper that sleeps, or has no core, holds nobody up: the others
// take its parts.
class Workers {
 public:
  // `threads` includes the caller of Run(); with 1 there are no helpers. The
  // helpers start with the first Run() that can use them, or as many of them as
  // the system allows. With nothing to do they busy-wait for `spin`, and then
  // sleep.
  Workers(int threads, std::chrono::nanoseconds spin);
  // Ends the helpers. REQUIRES that no Run() is under way.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int threads() const { return threads_; }

  using Part = std::function<Status(std::size_t)>;
  // Calls part(i) once for every i below `count`, and returns when all calls
  // have returned. Returns OK, or the error of a part; the other parts run all
  // the same. May be called on any thread: while another caller has the
  // helpers, and inside of a part, it runs all parts on the calling thread.
  Status Run(std::size_t count, const Part& part);

 private:
  void StartHelpers();
  void Help();
  bool Enter();
  void Leave();
  void TakeParts();
  void Wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen) const;

  const int threads_;
  const std::chrono::nanoseconds spin_;
  std::atomic<bool> busy_{false};     // Some caller has the helpers, and
  std::vector<std::thread> helpers_;  // only that caller touches these two.
  bool started_ = false;
  std::atomic<bool> stop_{false};
  // Counts the calls that helpers were woken for.
  std::atomic<std::uint32_t> calls_{0};
  // The call: kOpen while helpers may enter it, plus the number of those
  // inside. Only a thread inside, or the caller, reads part_ and count_.
  std::atomic<std::uint32_t> state_{0};
  const Part* part_ = nullptr;
  std::size_t count_ = 0;
  std::atomic<std::size_t> next_{0};
  Mutex error_mutex_;
  Status error_ GF_GUARDED_BY(error_mutex_);
};

// Runs the parts of a pass over `elements` elements in all: on `workers`, or in
// order on the calling thread if there are none (null) or the pass takes less
// time than waking them. Returns OK or the error of a part, after which other
// parts may not have run.
Status RunPass(Workers* workers, std::size_t parts, std::size_t elements,
               const Workers::Part& part);

}  // namespace gradientflow
