#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/done.h"
#include "gradientflow/base/growing_queue.h"
#include "gradientflow/base/status.h"
#include "transports/link.h"
#include "transports/rdma/card_memory.h"
#include "transports/rdma/frames.h"
#include "transports/rdma/queue_pair.h"
#include "transports/rdma/rail.h"
#include "transports/rdma/throughput.h"

namespace gradientflow {

struct OutboxArgs {
  Rail* rail = nullptr;
  QueuePair* pair = nullptr;
  std::byte* ring =
      nullptr;  // Frames leave from here: the image of the peer's.
  std::uint32_t ring_key = 0;
  const std::byte* grants = nullptr;  // Where the peer writes its grants.
  int* owed_credits = nullptr;        // Go along with what is written.
  // With which the outbox measures its rate. Null if nobody calls SecondsFor().
  const Clock* clock = nullptr;
};

// The sending half of an RDMA link.
//
//   Send() ─> lane ─> short: copied into the ring ──────────────> peer's ring
//                  └> long:  its header into the ring; for each grant, a piece
//                            from the payload itself, if the card reaches it,
//                            else from a staging slot ─> where the peer said
//
// NOT thread-safe.
class Outbox {
 public:
  explicit Outbox(const OutboxArgs& args)
      : args_(args), throughput_(args.rail->port().gbps) {}
  // REQUIRES EndAll(), or that nothing was ever written.
  ~Outbox() = default;
  // Where the peer's ring is.
  void SetPeer(RemotePlace ring) { peer_ring_ = ring; }

  void Send(int lane, const OutMessage& message);
  // Ends the message with `why` in the next RunDones().
  void Refuse(const OutMessage& message, const Status& why) {
    done_.Add(message.done, 0, why);
  }
  // A placed message; see RemotePlaces::Put().
  void Put(std::span<const ConstBufferView> pieces, const RemotePlace& there,
           std::uint32_t notice, const Done& done);
  // Writes what can be written. Returns whether anything moved.
  bool Push();
  // Runs the completions of messages that are done. Returns whether there was
  // one.
  bool RunDones() { return done_.Poll(); }
  // Whether Push() or RunDones() may have something to do.
  bool busy() const { return to_push_ || !done_.empty(); }
  // Whether Push() or RunDones() has something to do.
  bool CanMove() const;

  // Each returns kDataLoss if the peer gives what it cannot have.
  Status OnCredits(int credits);
  Status OnGrant(int lane);
  // Runs the completion of what was written if that is a Put().
  void OnWritten(std::uint64_t cookie);

  // Messages that Send() and Put() took and that have not left.
  std::size_t queued() const { return queued_; }
  // How long it would take until `bytes` more are through. REQUIRES a clock.
  double SecondsFor(std::size_t bytes) const {
    return throughput_.SecondsFor(bytes);
  }
  // The queue pair is gone, so no card reads what was lent: every message ends
  // with `why` in the next RunDones(), and no completion of a Put() runs.
  void EndAll(const Status& why);
  // No completion of a Put() runs any more.
  void ForgetPuts();
  // As EndAll(), but no completion runs any more, not even if one is running.
  void DropAll();

 private:
  struct Granted {
    Grant grant;
    std::uint32_t written = 0;
  };
  struct Lane {
    GrowingQueue<OutMessage> queue;
    // The frame of the first message is out already. Only between the end of
    // the message before it and the next step of PushLane().
    bool framed = false;
    bool asked = false;      // The header of the first, long message is out.
    std::uint64_t sent = 0;  // Bytes of it.
    std::uint64_t granted = 0;
    GrowingQueue<Granted> grants;
    int next_grant = 0;  // Its place in the lane's part of the grants.
  };
  struct Placed {
    std::array<ConstBufferView, kMostPutPieces> pieces;
    std::size_t count = 0;  // Of pieces.
    RemotePlace there;
    std::uint32_t notice = 0;
    Done done;
  };
  struct Lent {
    Done done;
    std::size_t bytes = 0;
  };

  void Began(std::size_t bytes) {
    if (args_.clock != nullptr) throughput_.Began(bytes, args_.clock->Now());
  }
  void Ended(std::size_t bytes) {
    if (args_.clock != nullptr) throughput_.Ended(bytes, args_.clock->Now());
  }
  // Something has come. Lanes that waited for nothing may need it, even if
  // others still wait for room or for a slot.
  void MayPush() {
    to_push_ = true;
    needs_room_ = needs_slot_ = false;
  }
  bool PushLane(int index, std::size_t* budget);
  bool PushPuts();
  void WritePut(std::span<const ConstBufferView> pieces,
                const RemotePlace& there, std::uint32_t notice,
                const Done& done);
  bool RingHasRoom() const;
  void WriteFrame(int lane, const OutMessage& message, bool filled);
  // Returns whether all of the first message has been written.
  bool PushPieces(int index, std::size_t* budget);
  bool WritePiece(int index, Granted* to, std::size_t* copied);
  void WriteData(const QueuePair::WriteArgs& data, std::size_t bytes);
  void WriteTold(QueuePair::WriteArgs* data, std::size_t bytes,
                 std::uint32_t immediate);
  std::uint64_t Remember(const Lent& lent);
  int TakeCredits();

  const OutboxArgs args_;
  RemotePlace peer_ring_;
  std::array<Lane, kRdmaLanes> lanes_;
  GrowingQueue<Placed> puts_;
  std::size_t queued_ = 0;
  std::uint64_t frames_ = 0;  // Written to the ring so far,
  std::uint64_t freed_ = 0;   // and taken out by the peer.
  int first_lane_ = 0;        // The data lane that Push() serves first.
  bool to_push_ = false;
  // What the last Push() lacked.
  bool needs_room_ = false;
  bool needs_slot_ = false;
  DoneQueue done_;
  Throughput throughput_;
  // What to tell when the card has read messages where they are, by cookie.
  std::vector<Lent> lent_;
  std::vector<std::uint32_t> free_lent_;
  // The same for puts, in the order in which the card is done with them.
  GrowingQueue<Lent> lent_puts_;
  std::vector<int> slots_;  // Staging slots that the card reads.
};

}  // namespace gradientflow
