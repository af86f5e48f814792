#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/link.h"
#include "transports/rdma/card_memory.h"
#include "transports/rdma/frames.h"
#include "transports/rdma/queue_pair.h"
#include "transports/rdma/rail.h"

namespace gradientflow {

struct InboxArgs {
  int peer = 0;
  Rail* rail = nullptr;
  QueuePair* pair = nullptr;
  const std::byte* ring = nullptr;  // Where the peer writes frames.
  std::byte* grants = nullptr;      // Grants are sent from here.
  std::uint32_t grants_key = 0;
  int* owed_credits = nullptr;
  LinkEvents* events = nullptr;
  std::string who;  // "rank 1 (10.0.0.2:4321): "
};

// The receiving half of an RDMA link.
//
//   frame ─> OnHeader() ─> short: copied to its landing ─> OnMessage()
//                       └> long:  grants ─> pieces ─> OnMessage()
//
// A landing that the card reaches is granted as it is. Other messages come
// through slots, whose pieces are copied to the landing.
//
// Everything from the peer is checked before it is used. If a function returns
// an error, the link fails with it; the text says what the peer did wrong.
// NOT thread-safe.
class Inbox {
 public:
  explicit Inbox(const InboxArgs& args) : args_(args) {}
  ~Inbox() { GiveBackSlots(); }
  // Where the peer reads grants.
  void SetPeer(RemotePlace grants) { peer_grants_ = grants; }

  // The peer's next frame is in the ring. If `filled`, the lane's oldest grant
  // was filled before it, as for OnPiece().
  Status OnFrame(int lane, std::uint32_t bytes, bool filled);
  // The oldest grant of the lane has been filled.
  Status OnPiece(int lane);
  void Resume(int lane);
  // Takes frames of lanes that were resumed, and sends grants and credits that
  // could not be sent before.
  Status Push(bool* moved);
  bool CanMove() const;
  // Whether Push() may have something to do.
  bool busy() const { return to_push_; }

  // Whether a message has begun and not ended.
  bool InMessage() const;
  // No callback runs any more, not even from the function under way.
  void Close();

 private:
  struct Given {
    std::uint32_t bytes = 0;
    CardSlots::Slot slot;  // Its index is -1 if the card wrote to the landing.
  };
  struct Lane {
    bool in_message = false;  // A long one.
    Header header;
    std::byte* landing = nullptr;
    std::uint64_t granted = 0;
    std::uint64_t arrived = 0;
    std::array<Given, kGrantsPerLane> given;
    int first = 0;  // Of given.
    int count = 0;
    int next_grant = 0;
    bool paused = true;  // Until the link is adopted, and whenever told so.
    // Frames that came while the lane was paused.
    std::deque<std::vector<std::byte>> held;
  };

  Status CheckKind(int lane, MessageKind kind) const;
  // Something has come. Lanes that waited for nothing may need it, even if
  // others still wait for room or for a slot.
  void MayPush() {
    to_push_ = true;
    needs_room_ = needs_slot_ = false;
  }
  Status Take(int index, const std::byte* frame, std::size_t bytes,
              bool* taken);
  Status TakeHeld(int index, bool* moved);
  void GiveGrants(int index);
  void SendGrant(int index, RemotePlace there, std::uint32_t bytes);
  void GiveBackSlots();

  const InboxArgs args_;
  RemotePlace peer_grants_;
  std::array<Lane, kRdmaLanes> lanes_;
  std::uint64_t frames_ = 0;
  int held_ = 0;        // Frames, in all lanes.
  int first_lane_ = 0;  // The lane that Push() serves first.
  bool to_push_ = false;
  bool needs_slot_ = false;
  bool needs_room_ = false;
  bool closed_ = false;
};

}  // namespace gradientflow
