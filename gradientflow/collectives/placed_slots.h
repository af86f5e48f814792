#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/done.h"
#include "gradientflow/base/ok_status.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/placed_layout.h"
#include "gradientflow/collectives/placed_notice.h"
#include "gradientflow/collectives/schedule.h"
#include "transports/fabric.h"
#include "transports/remote_places.h"

namespace gradientflow {

// What a kRecv awaits if messages are placed.
inline PlacedPhase PhaseOf(const Action& recv) {
  return recv.dst.space == Slice::Space::kScratch ? PlacedPhase::kContribution
                                                  : PlacedPhase::kSum;
}

// What all slots of a window use. The places and the fabric outlive it.
struct PlacedContext {
  RemotePlaces& places;
  Fabric& fabric;
  PlacedLayout layout;
  // The places of all ranks of the job in the group that places messages; -1
  // for those that are not in it.
  std::vector<int> members;

  int MemberOf(int rank) const {
    return members[static_cast<std::size_t>(rank)];
  }
  // Where a peer's contribution lands here.
  int LandingOf(int peer) const {
    const int member = MemberOf(peer);
    return member < MemberOf(fabric.rank()) ? member : member - 1;
  }
};

// The slot memory of one segment, and what peers have written there. The
// segment that runs is the only one to use the slot until it ends. One notice
// of a peer for the segment after it may come before that: its contribution.
// NOT thread-safe.
class PlacedSlot {
 public:
  PlacedSlot(const PlacedContext& context, int window, int index);
  // Others place messages here from now on. REQUIRES free().
  void Restart();

  // Whether the next segment may begin. The sums of the last one may still be
  // leaving when it has ended.
  bool free() const { return !running_ && lent_ == 0; }
  // `told` runs for each part that has come, with the cookie that Await() got
  // added to its own; and with kPayloadsLeft when no payload is lent any more.
  void Begin(Done told);
  static constexpr std::uint32_t kPayloadsLeft = 1U << 30;
  // Forgets what has come, but for early contributions.
  void End();
  // Forgets everything that it has lent: the fabric has failed.
  void Abandon();
  // The same for payloads alone, so that the segment may end.
  void AbandonPayloads() { payloads_ = 0; }

  // Returns whether `peer` has written its part, and then adds the flags that
  // came with it. If it has not, the segment is told when it has, with the
  // flags. REQUIRES that the segment awaits it only once.
  bool Await(PlacedPhase phase, int peer, std::uint32_t cookie,
             std::uint32_t* flags) {
    std::uint8_t& bits = peers_[static_cast<std::size_t>(peer)];
    bits |= Bit(phase) << kAwaitedShift;
    if ((bits & Bit(phase)) == 0) {
      CookieOf(phase, peer) = cookie;
      return false;
    }
    if ((bits & Bit(phase) << kNonfiniteShift) != 0) *flags |= kFlagNonfinite;
    return true;
  }
  bool HasCome(PlacedPhase phase, int peer) const {
    return (peers_[static_cast<std::size_t>(peer)] & Bit(phase)) != 0;
  }
  // Returns OK, or kDataLoss if a peer has written what nothing has awaited.
  Status CheckAllAwaited() const;

  // Writes a contribution to a landing of `peer`. `payload` is lent as long as
  // lends_payloads(); the slot's own memory is until the segment ends.
  void PutContribution(int peer, int landing, const PlacedHeader& header,
                       ConstBufferView payload);
  bool lends_payloads() const { return payloads_ > 0; }
  // Writes the first `bytes` of sum() where the peer wants them.
  void PutSum(int peer, RemotePlace there, std::size_t bytes, bool nonfinite);

  RemotePlaces& places() const { return context_.places; }
  // The header of a peer's contribution that has come, and the payload of one.
  PlacedHeader HeaderOf(int peer) const {
    return DecodePlacedHeader(
        memory_ + context_.layout.LandingOf(context_.LandingOf(peer)));
  }
  std::byte* PayloadAt(int landing) const {
    return memory_ + context_.layout.LandingOf(landing) + kPlacedHeaderBytes;
  }
  std::byte* sum() const { return memory_ + context_.layout.sum; }
  std::byte* image() const { return memory_ + context_.layout.image; }
  std::byte* results() const { return memory_ + context_.layout.results; }

  // A notice of `peer` has come. Tells the segment that awaits it. Ends the job
  // if the notice makes no sense.
  void Arrive(int peer, const PlacedNotice& notice) {
    std::uint8_t& bits = peers_[static_cast<std::size_t>(peer)];
    const std::uint8_t came = Bit(notice.phase);
    if (!running_ || notice.generation != generation_ || (bits & came) != 0) {
      return ArriveEarly(peer, EncodeNotice(notice));
    }
    bits |= came;
    if (notice.nonfinite) bits |= came << kNonfiniteShift;
    if ((bits & came << kAwaitedShift) == 0) return;
    Done done = told_;
    done.cookie += CookieOf(notice.phase, peer);
    done(kOkStatus, notice.nonfinite ? kFlagNonfinite : 0);
  }
  // What peers have written for the next segment, before that has begun here.
  bool has_early() const { return early_ > 0; }
  // Returns kInvalidArgument if what `peer` has written early belongs to call
  // `last_done` or to one before it: this rank is done with those calls.
  Status CheckEarly(int peer, std::uint64_t last_done) const;

 private:
  // What has come from a peer. Each phase has three bits: its part has come, it
  // holds a value that is not finite, and the segment awaits it.
  static constexpr std::uint8_t Bit(PlacedPhase phase) {
    return static_cast<std::uint8_t>(1 << static_cast<int>(phase));
  }
  static constexpr int kNonfiniteShift = 2;
  static constexpr int kAwaitedShift = 4;
  static constexpr std::uint8_t kEarly = 1 << 6;

  std::uint32_t& CookieOf(PlacedPhase phase, int peer) {
    return cookies_[static_cast<std::size_t>(peer) * kPlacedPhases +
                    static_cast<std::size_t>(phase)];
  }
  std::uint32_t NoticeOf(PlacedPhase phase, bool nonfinite) const {
    return EncodeNotice({nonfinite, phase, window_, index_, generation_});
  }
  void ArriveEarly(int peer, std::uint32_t notice);
  static void OnPayloadPut(void* self, std::uint64_t cookie,
                           std::uint32_t flags, const Status& status);
  Status Refuse(int peer, PlacedNotice notice) const;
  static void OnSumPut(void* self, std::uint64_t cookie, std::uint32_t flags,
                       const Status& status);

  const PlacedContext& context_;
  const int window_;
  const int index_;
  const std::size_t offset_;  // In the slot memory of any rank.
  std::byte* const memory_;
  bool running_ = false;
  std::uint32_t generation_ = 0;  // Of the last segment that began.
  int payloads_ = 0;              // Of contributions that are still being read.
  int lent_ = 0;                  // Sums that are still being read.
  int early_ = 0;                 // Contributions to the next segment.
  std::vector<std::uint8_t> peers_;
  Done told_;                           // Empty after Abandon().
  std::vector<std::uint32_t> cookies_;  // Of what the segment awaits.
};

// All slots of a rank. NOT thread-safe.
class PlacedSlots final : public RemotePlaces::Sink {
 public:
  // `group` are those that place messages on each other in the windows of all
  // ranks. REQUIRES places.slots() of PlacedSlotBytes() or more.
  PlacedSlots(RemotePlaces& places, Fabric& fabric, const PlacedLayout& layout,
              const Group& group);
  ~PlacedSlots() override;
  PlacedSlots(const PlacedSlots&) = delete;
  PlacedSlots& operator=(const PlacedSlots&) = delete;

  // Lends the group's window to the ranks of `group`, until EndGroup(). They
  // may place messages there as soon as all of them have done so, which this
  // rank may hear last. Returns false if it is lent or still in use.
  bool BeginGroup(const PlacedLayout& layout, const Group& group);
  // Calls of the group that have begun keep the window until they are done.
  void EndGroup() { group_begun_ = false; }
  // Whether BeginGroup() need not wait for something that leaves the window by
  // itself. Sums may still be on their way when the calls that they end have
  // ended. A call may wait for its caller, so it is not waited for.
  bool GroupIsQuiet() const;

  // Takes the slot of the window's next segment, which begins at once. Null as
  // long as that slot has not been given back. All ranks of the group begin the
  // segments of a window that place anything in the same order, so that each is
  // in the same slot on all of them.
  PlacedSlot* Take(int window);

  // A call begins that uses the window; CallDone() or Abandon() ends it.
  void CallBegins(int window) { ++Of(window).calls; }
  // This rank is done with call `call` of those that use the window, and all
  // before it. Ends the job if a peer has begun one of them that this rank did
  // not.
  void CallDone(int window, std::uint64_t call);
  // The fabric has failed: nothing touches lent memory any more.
  void Abandon();

  void OnNotice(int peer, std::uint32_t notice) override;

 private:
  struct Window {
    explicit Window(PlacedContext of) : context(std::move(of)) {}
    PlacedContext context;
    std::vector<std::unique_ptr<PlacedSlot>> slots;
    std::uint64_t begun = 0;
    std::uint64_t done_call = 0;
    std::uint64_t calls = 0;  // That have begun and are not done.
  };
  void Refuse(int peer, std::uint32_t notice);
  void FailIfTooLate(const Window& window, const PlacedSlot& slot, int peer);
  Window& Of(int window) { return windows_[static_cast<std::size_t>(window)]; }

  Fabric& fabric_;
  RemotePlaces& places_;
  // kPlacedWindows, which stay where they are: their slots refer to them.
  std::vector<Window> windows_;
  bool group_begun_ = false;
};

}  // namespace gradientflow
