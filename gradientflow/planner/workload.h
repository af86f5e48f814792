#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "gradientflow/planner/profile.h"

namespace gradientflow::planner {

// What a rank does by itself in a step.
struct Workload {
  std::vector<std::size_t> tensor_elements;  // In pool order.
  std::vector<double> ready_seconds;         // After backward started.
  double backward_seconds = 0;
  double compute_seconds = 0;          // The whole step, backward included.
  std::size_t pool_element_bytes = 4;  // Of a gradient in the pool.
  // Standard deviation of compute_seconds between ranks, divided by it.
  double spread_fraction = 0;
  double batch_samples = 0;  // Of one rank; 0: not known.

  double elements() const;
};

Workload WorkloadFrom(const Profile& profile);

// How gradients are exchanged.
struct Exchange {
  std::size_t wire_element_bytes = 4;
  bool csc = false;        // Coarse-grained sparse communication.
  double sparsity = 0.85;  // Of CSC: the share of chunks that is kept back.
  std::size_t chunk_elements = 32000;
  bool overlap = true;  // Under backward, or after it.
  // A bucket closes when it has more; unset: the size that ends the step first.
  std::optional<std::size_t> theta_bytes;
};

// A part of CSC's pass over memory.
struct Pass {
  double ready_seconds = 0;  // When its gradients are written.
  double bytes = 0;          // That it reads and writes.
};

// One allreduce of a step.
struct Message {
  double bytes = 0;          // On the wire.
  double ready_seconds = 0;  // When its last gradient is written.
  // With CSC: it can be sent once this many passes of Bucketing::sent are made.
  std::size_t passes_end = 0;
};

// The messages of a step, in order, for one bucket size.
struct Bucketing {
  std::size_t theta_bytes = 0;
  std::vector<Message> messages;
  // CSC's passes over what is sent, and over what is kept back, each in pool
  // order. A pass belongs to one message.
  std::vector<Pass> sent;
  std::vector<Pass> kept;
};

// The messages for each bucket size that is to be compared: Exchange's, or
// those that the library compares. Sizes that cut alike are one entry, that of
// the smallest of them.
std::vector<Bucketing> BucketingsOf(const Workload& workload,
                                    const Exchange& exchange);

// The number of chunks of the pool, whose norms CSC exchanges.
std::size_t ChunksOf(const Workload& workload, const Exchange& exchange);

}  // namespace gradientflow::planner
