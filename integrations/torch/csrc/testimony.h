#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace gft {

// What each rank of a job says that it called, if the calls do not match. It
// travels through torch's store, since the session has failed by then.
// Thread-safe.
class Testimony {
 public:
  using StorePtr = c10::intrusive_ptr<c10d::Store>;

  Testimony(StorePtr store, std::string prefix, int rank);

  // Records what this rank called. Only the first record counts. Never blocks.
  void Remember(const std::string& mine);
  // Publishes this rank's record; returns "\n  rank 0:
  // gradientflow:all_reduce...", a line for each of `ranks`. Waits a little for
  // ranks that have not reported yet. Returns "" if there is no store, or if it
  // does not answer. Asks only once.
  std::string Of(const std::vector<int32_t>& ranks);

 private:
  std::string KeyOf(int rank) const;
  std::string Ask(const std::vector<int32_t>& ranks);

  const StorePtr store_;
  const std::string prefix_;
  const int rank_;
  std::mutex mutex_;
  std::string mine_;
  std::mutex asking_;
  bool asked_ = false;
  std::string all_;
};

}  // namespace gft
