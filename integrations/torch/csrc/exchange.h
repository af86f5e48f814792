#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "library.h"
#include "session.h"

namespace gft {

// How a session that runs in torch's job is opened.
struct Joining {
  // The ranks meet in it, under keys that start with `prefix`. Any store that
  // c10d has.
  c10::intrusive_ptr<c10d::Store> store;
  std::string prefix;
  int rank = 0;
  int size = 1;
  // For the ranks to meet.
  std::chrono::milliseconds timeout{0};
};

// A key that starts with `prefix` and differs from that of this rank's last
// time here, since stores outlive groups: "<prefix>/<times>". Alike on ranks
// that come equally often.
std::string NextRound(c10d::Store& store, const std::string& prefix, int rank);

// Session::Open() with the ranks meeting in a store of torch's; `options` gets
// what `joining` says. Throws; on the ranks that came, the error names those
// that did not. Not with the GIL.
std::shared_ptr<Session> OpenOverStore(Options options, Joining joining,
                                       const std::vector<gf_tensor>* tensors);

}  // namespace gft
