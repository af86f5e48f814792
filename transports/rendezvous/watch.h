#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/rendezvous/frames.h"
#include "transports/rendezvous/rendezvous.h"

namespace gradientflow::rendezvous {

// A connection of the rendezvous, once all have been told to go on.
struct Watched {
  int rank = 0;  // The rank at the other end.
  std::string address;
  FrameStream stream;
  bool linked = false;  // It needs no watch any more.
};

// Returns the watch over these ranks: on rank 0 over all others, to which it
// passes on what it hears; on the others over rank 0. `ended` is what the first
// Look() returns, if it is not OK.
std::unique_ptr<RendezvousWatch> MakeWatch(std::vector<Watched> watched,
                                           Status ended);

class Meeting;
// Returns the watch over the ranks that have met in files, of a rank that has
// acknowledged the verdict, or written it.
std::unique_ptr<RendezvousWatch> MakeWatch(std::unique_ptr<Meeting> meeting);

// Returns the error of a rank that ends while others connect.
Status EndedWhileConnecting(int rank, const std::string& address,
                            const std::string& trouble);

}  // namespace gradientflow::rendezvous
