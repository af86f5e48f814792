#pragma once

#include <pthread.h>

#include <csignal>

namespace gradientflow {

// Blocks all signals of the calling thread; afterwards they are as they were. A
// thread that starts meanwhile inherits that, so signals go to the program's
// own threads.
class WithoutSignals {
 public:
  WithoutSignals() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~WithoutSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WithoutSignals(const WithoutSignals&) = delete;
  WithoutSignals& operator=(const WithoutSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace gradientflow
