#pragma once

#include <cstddef>
#include <type_traits>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/communicator/communicator.h"

// Calls by which the ranks of a probe wait for each other and share what they
// have measured. All ranks make them; errors are those of the communicator.
namespace gradientflow {

Status Barrier(Communicator& comm);

// Each of the values, of as many on all ranks.
Status Allreduce(Communicator& comm, ReduceOp op, std::vector<double>* values);

// All ranks get the root's bytes.
Status BroadcastBytes(Communicator& comm, int root, void* bytes,
                      std::size_t count);

template <typename T>
Status Broadcast(Communicator& comm, int root, T* value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return BroadcastBytes(comm, root, value, sizeof(T));
}

}  // namespace gradientflow
