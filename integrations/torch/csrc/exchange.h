#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "library.h"
#include "session.h"

namespace gft {

// How to open a session that runs in torch's job.
struct Joining {
  // The ranks meet in this store, under keys that start with `prefix`. It may
  // be any store of c10d's.
  c10::intrusive_ptr<c10d::Store> store;
  std::string prefix;
  int rank = 0;
  int size = 1;
  // How long to wait for all ranks.
  std::chrono::milliseconds timeout{0};
};

// Returns "<prefix>/<times>", where `times` counts this rank's calls. The key
// differs from that of the call before, since stores outlive groups. It is the
// same on all ranks that have called equally often.
std::string NextRound(c10d::Store& store, const std::string& prefix, int rank);

// Session::Open(), with the ranks meeting in a store of torch's; `joining`
// completes `options`. Throws; on the ranks that came, the error names those
// that did not. To be called without the GIL.
std::shared_ptr<Session> OpenOverStore(Options options, Joining joining,
                                       const std::vector<gf_tensor>* tensors);

}  // namespace gft
