#pragma once

#include <cstdint>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "transports/fabric.h"

namespace gradientflow {

// Who has closed a session that others still step in. A rank that closes its
// session may stay in the job, so nothing else would tell those who wait for it
// in a step that it does not take part in any more: each rank that closes sends
// the others a note of how many steps it has finished.
// NOT thread-safe: the baton's holder calls.
class ClosingNotes {
 public:
  // Between the ranks of `group`, by messages of group `id`, which has no other
  // messages and is alike on all ranks. `fabric` is borrowed.
  ClosingNotes(Fabric& fabric, const CallGroup& group, GroupId id);
  ClosingNotes(const ClosingNotes&) = delete;
  ClosingNotes& operator=(const ClosingNotes&) = delete;

  // This rank closes, after so many steps.
  void Send(std::uint64_t steps);
  // Looks at what has come. OK, or kUnavailable names a rank that takes no part
  // in the step which comes after so many. To be asked now and then.
  Status Check(std::uint64_t steps);
  // No note is being received.
  bool settled() const { return receiving_ == 0; }
  // Forgets the notes that nobody has read; those that this rank has sent go on
  // by themselves. The last call. REQUIRES settled().
  void Close() { fabric_.CloseGroup(id_.group); }

 private:
  struct Peer {
    int rank = 0;  // Of the fabric.
    bool asked = false;
    bool closed = false;
    std::uint64_t steps = 0;
  };
  static void OnNote(void* self, std::uint64_t peer, std::uint32_t,
                     const Status& status);

  Fabric& fabric_;
  const MessageId id_;
  std::vector<Peer> peers_;
  int receiving_ = 0;
};

}  // namespace gradientflow
