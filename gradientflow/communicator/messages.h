#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/done.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "transports/fabric.h"

namespace gradientflow {

// Point-to-point messages: numbers those of one (group, peer, tag), unless the
// fabric does, so that they match in order; and finds the sender for a receive
// from any rank.
// NOT thread-safe: the baton's holder calls.
class Messages {
 public:
  // Borrows the fabric, which outlives all calls but the destructor.
  explicit Messages(Fabric& fabric) : fabric_(fabric) {}
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  // Lends `src` until `done` runs. kInvalidArgument (and no `done`): `peer` is
  // not another rank of `group`.
  Status Send(const CallGroup& group, int peer, std::uint32_t tag,
              ConstBufferView src, Done done);
  // Lends `dst` until `done` runs. `peer`: kAnyRank takes the first message
  // with the tag that comes; receives of one tag are served in the order in
  // which they began. *source (may be null) is set before `done` runs. Errors
  // as above.
  Status Recv(const CallGroup& group, int peer, std::uint32_t tag,
              BufferView dst, int* source, Done done);

  // Looks for messages that receives from any rank wait for. Returns whether
  // anything moved.
  bool Poll();
  // Calls begun and not done.
  std::size_t in_flight() const { return in_flight_; }
  // Grows as calls end and begin: for the watchdog.
  std::uint64_t advances() const { return advances_; }
  // Fails the receives that wait for any rank, or behind one that does.
  void FailAll(const Status& why);
  // The group is closed: receives from any of its ranks end with kAborted; one
  // from a certain rank goes on waiting.
  void Forget(GroupId group);

 private:
  struct Receive {
    const CallGroup* group = nullptr;
    int peer = 0;
    BufferView dst;
    int* source = nullptr;
    Done done;
  };
  using Counter =
      std::map<std::tuple<GroupId, int, std::uint32_t>,
               std::uint32_t>;  // By group, peer and tag < kNumberedTags.

  Done Track(Done done);
  MessageId Next(Counter* counts, const CallGroup& group, int peer,
                 std::uint32_t tag) const;
  MessageId Awaited(const CallGroup& group, int peer, std::uint32_t tag) const;
  void Post(const Receive& receive, int peer, std::uint32_t tag);
  bool Serve(std::uint32_t tag, std::deque<Receive>* queue);
  // Whether nobody is left who could send what the receive waits for.
  bool IsDeserted(const Receive& receive) const;
  static void OnDone(void* self, std::uint64_t slot, std::uint32_t flags,
                     const Status& status);

  Fabric& fabric_;
  Counter sent_;
  Counter received_;
  // By group and tag: receives behind one from any rank, that first.
  std::map<std::pair<GroupId, std::uint32_t>, std::deque<Receive>> waiting_;
  std::vector<Done> dropped_;  // Receives of closed groups.
  std::vector<Done> slots_;    // Of calls on their way, by the fabric's cookie.
  std::vector<std::uint64_t> free_slots_;
  std::size_t in_flight_ = 0;
  std::uint64_t advances_ = 0;
};

}  // namespace gradientflow
