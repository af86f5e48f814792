#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/rdma/choose.h"
#include "transports/rdma/queue_pair.h"
#include "transports/remote_places.h"
#include "transports/wire.h"

// What travels between the two ends of an RDMA link.
//
// Over the TCP connection (MessageKind::kRail), until both know that RDMA
// works:
//   kOffer    where this end is
//   kReady    its queue pair takes writes
//   kPassed   the peer's probe has come, and its own has arrived
//   kFailed   this will not happen, and why
//
// Over the queue pair, each with an immediate number:
//   frame     header and payload, or the header of a message that is too long
//             for the ring: written into the next slot of the peer's ring. It
//             may tell of the piece before it, too
//   grant     where the peer may write a piece of such a message; or credits
//             alone
//   piece     a piece of it has been written
//   placed    a notice of RemotePlaces::Put()
namespace gradientflow {

// Control messages about ranks, and not about single messages, stay on the TCP
// connection.
constexpr bool IsOfRanks(MessageKind kind) {
  return kind == MessageKind::kPing || kind == MessageKind::kPong ||
         kind == MessageKind::kAbort || kind == MessageKind::kBye ||
         kind == MessageKind::kRail;
}

// -- The ring of each direction ---------------------------------------------
inline constexpr int kRingSlots = 16;
inline constexpr std::size_t kRingSlotBytes = 4096;
inline constexpr std::size_t kRingPayloadBytes = kRingSlotBytes - kHeaderBytes;
// Streams of messages that keep their order. A message that is too long for the
// ring holds up those behind it in its own lane only. Lane 0 has what the
// fabric sends on lane 0 and can wait for data.
inline constexpr int kRdmaLanes = 9;
// Pieces of a message that may be granted at a time, so that one is written
// while another is copied.
inline constexpr int kGrantsPerLane = 2;
// Immediate numbers that a peer may have sent and this rank not yet taken,
// without notices: a frame in each slot, grants and pieces of each lane, and
// messages that only return credits, of which there is one per half a ring.
inline constexpr int kImmediatesWithoutNotices =
    kRingSlots + 2 * kGrantsPerLane * kRdmaLanes + 4;

// -- Immediate numbers ------------------------------------------------------
//   kind (2) | lane (4) | credits (8) | grant or filled (1) | 0 (17)
//   kind (2) | notice (30)
inline constexpr std::uint32_t kNoticeMask = (1U << kNoticeBits) - 1;
enum class ImmediateKind : std::uint8_t { kFrame, kPiece, kGrant, kPlaced };
struct Immediate {
  ImmediateKind kind = ImmediateKind::kFrame;
  int lane = 0;
  int credits = 0;     // Slots of the ring that its reader has freed.
  bool grant = false;  // Otherwise a kGrant has credits alone.
  // In a kFrame: the lane's oldest grant was filled before the frame was
  // written.
  bool filled = false;
  std::uint32_t notice = 0;
};
std::uint32_t Encode(const Immediate& immediate);
// The same for a kPlaced, which is nothing but a notice.
inline std::uint32_t EncodePlaced(std::uint32_t notice) {
  return static_cast<std::uint32_t>(ImmediateKind::kPlaced) << kNoticeBits |
         (notice & kNoticeMask);
}
inline bool IsPlaced(std::uint32_t number) {
  return number >> kNoticeBits ==
         static_cast<std::uint32_t>(ImmediateKind::kPlaced);
}
inline std::uint32_t NoticeOf(std::uint32_t number) {
  return number & kNoticeMask;
}
// Returns kDataLoss for a number that no link sends.
Result<Immediate> DecodeImmediate(std::uint32_t number);

// -- Grants -----------------------------------------------------------------
struct Grant {
  RemotePlace there;
  std::uint32_t bytes = 0;
};
inline constexpr std::size_t kGrantBytes = 16;
void Encode(const Grant& grant, std::byte* to);
Grant DecodeGrant(const std::byte* from);

// -- Over TCP ---------------------------------------------------------------
struct RailFrame {
  enum class Kind : std::uint8_t { kOffer = 1, kReady, kPassed, kFailed };
  Kind kind = Kind::kOffer;
  std::string text;  // The device; or what is wrong, for kFailed.
  // In a kOffer only:
  RdmaAddress address;        // Its GID is one of these:
  std::vector<RdmaGid> gids;  // At most kMostGids.
  bool ethernet = true;
  RemotePlace ring;
  RemotePlace grants;  // kRdmaLanes * kGrantsPerLane places for grants.
  RemotePlace slots;   // For RemotePlaces; of slot_bytes.
  std::uint64_t slot_bytes = 0;
};
std::string Encode(const RailFrame& frame);
// Returns kDataLoss, with what was expected, for other bytes.
Result<RailFrame> DecodeRailFrame(const std::string& bytes);

}  // namespace gradientflow
