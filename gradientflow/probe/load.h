#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace gradientflow {

// Threads that compute, as backward does on a CPU: they multiply small matrices
// and pass over memory between two products. They block all signals.
class ComputeLoad {
 public:
  // REQUIRES at least one thread.
  explicit ComputeLoad(int threads);
  ~ComputeLoad();  // Ends the threads; takes a millisecond or so.
  ComputeLoad(const ComputeLoad&) = delete;
  ComputeLoad& operator=(const ComputeLoad&) = delete;

  // The work that all threads have done so far, in products.
  std::uint64_t products() const;

 private:
  struct Worker;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<bool> stop_{false};
};

// An interval in which threads computed.
struct LoadWindow {
  double seconds = 0;
  double products = 0;  // Of all threads.
  double messages = 0;  // That the rank sent meanwhile; it got as many.
};

// Returns by how many seconds each message of `beside` made the threads' work
// longer, which had no messages beside it in `alone`: the seconds that each
// message took, times the part of its products that the threads did not do in
// them. Below 0 if they did more than before.
// REQUIRES that time passed in both, products in `alone`, messages in `beside`.
double LongerPerMessage(const LoadWindow& alone, const LoadWindow& beside);

}  // namespace gradientflow
