#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/done.h"
#include "gradientflow/base/pollable.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "transports/fabric.h"

namespace gradientflow {

// Point-to-point messages. Numbers the messages of one (group, peer, tag),
// unless the fabric does, so that they match in order. Finds the sender for a
// receive from any rank.
// NOT thread-safe: called by the holder of the baton.
class Messages final : public Pollable {
 public:
  // The fabric is borrowed. It outlives all calls, but not necessarily this
  // object.
  explicit Messages(Fabric& fabric) : fabric_(fabric) {}
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  // Sends `src`, which is lent until `done` runs. Returns kInvalidArgument, and
  // does not run `done`, if `peer` is not another rank of `group`.
  Status Send(const CallGroup& group, int peer, std::uint32_t tag,
              ConstBufferView src, Done done);
  // Receives into `dst`, which is lent until `done` runs. With kAnyRank as
  // `peer` the first message with the tag that arrives is taken; receives of
  // one tag are served in the order in which they began. *source is set before
  // `done` runs; `source` may be null. Errors are those of Send().
  Status Recv(const CallGroup& group, int peer, std::uint32_t tag,
              BufferView dst, int* source, Done done);

  // Looks for messages that receives from any rank wait for. Returns whether
  // anything moved.
  bool Poll() override;
  // Number of calls that have begun and not ended.
  std::size_t in_flight() const { return in_flight_; }
  // Grows as calls begin and end; for the watchdog.
  std::uint64_t advances() const { return advances_; }
  // Fails the receives that wait for any rank, or behind such a receive.
  void FailAll(const Status& why);
  // The group is closed. Receives that wait for any of its ranks end with
  // kAborted; those from a certain rank go on waiting.
  void Forget(GroupId group);

 private:
  struct Receive {
    const CallGroup* group = nullptr;
    int peer = 0;
    BufferView dst;
    int* source = nullptr;
    Done done;
  };
  // By group, peer and tag < kNumberedTags.
  using Counter =
      std::map<std::tuple<GroupId, int, std::uint32_t>, std::uint32_t>;

  Done Track(Done done);
  MessageId Next(Counter* counts, const CallGroup& group, int peer,
                 std::uint32_t tag) const;
  MessageId Awaited(const CallGroup& group, int peer, std::uint32_t tag) const;
  void Post(const Receive& receive, int peer, std::uint32_t tag);
  bool Serve(std::uint32_t tag, std::deque<Receive>* queue);
  // Ends the job if no rank is left that could send what the receive waits for.
  void FailIfDeserted(const Receive& receive, std::uint32_t tag);
  static void OnDone(void* self, std::uint64_t slot, std::uint32_t flags,
                     const Status& status);

  Fabric& fabric_;
  Counter sent_;
  Counter received_;
  // By group and tag: a receive from any rank, and the receives behind it.
  std::map<std::pair<GroupId, std::uint32_t>, std::deque<Receive>> waiting_;
  std::vector<Done> dropped_;  // Receives of closed groups.
  std::vector<Done> slots_;    // For calls in flight, by the fabric's cookie.
  std::vector<std::uint64_t> free_slots_;
  std::size_t in_flight_ = 0;
  std::uint64_t advances_ = 0;
};

}  // namespace gradientflow
