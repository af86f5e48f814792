#include "gradientflow/collectives/placed_slots.h"

#include <algorithm>
#include <cassert>
#include <string>

#include "gradientflow/base/str_cat.h"
#include "transports/wire.h"

// What flows between the slots of two ranks, in one segment:
//
//   PutContribution()  header and data to a landing of the peer ..> Arrive()
//   PutSum()           the sum to the place that the header names ..> Arrive()
//
// A notice belongs to the segment that runs in the slot, or is the early
// contribution to the next one: a peer that has ended segment s, and so begins
// s + W in the same slot, may be ahead of this rank by that much. It cannot be
// further ahead, because to end s + W it needs what this rank sends in it.
namespace gradientflow {
namespace {

std::vector<int> PlacesIn(const Group& group, int ranks) {
  std::vector<int> places(static_cast<std::size_t>(ranks), -1);
  for (int i = 0; i < group.size(); ++i) {
    places[static_cast<std::size_t>(
        group.members[static_cast<std::size_t>(i)])] = i;
  }
  return places;
}

}  // namespace

PlacedSlot::PlacedSlot(const PlacedContext& context, int window, int index)
    : context_(context),
      window_(window),
      index_(index),
      offset_(context.layout.SlotOf(window, index)),
      memory_(context.places.slots().data + offset_),
      peers_(static_cast<std::size_t>(context.fabric.size())),
      cookies_(peers_.size() * kPlacedPhases) {}

void PlacedSlot::Restart() {
  assert(free());
  generation_ = 0;
  early_ = 0;
  std::fill(peers_.begin(), peers_.end(), 0);
}

void PlacedSlot::Begin(Done told) {
  assert(free());
  running_ = true;
  told_ = told;
  generation_ = (generation_ + 1) & kGenerationMask;
  if (early_ == 0) return;
  early_ = 0;
  for (std::uint8_t& bits : peers_) {
    bits = (bits & kEarly) != 0 ? Bit(PlacedPhase::kContribution) : 0;
  }
}

void PlacedSlot::End() {
  running_ = false;
  for (std::uint8_t& bits : peers_) bits &= kEarly;
}

void PlacedSlot::Abandon() {
  payloads_ = lent_ = early_ = 0;
  std::fill(peers_.begin(), peers_.end(), 0);
  told_ = Done();
}

Status PlacedSlot::CheckAllAwaited() const {
  constexpr int kBoth = 3;
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    const int came = peers_[r] & kBoth;
    if (came == (peers_[r] >> kAwaitedShift & kBoth)) continue;
    return Status(
        StatusCode::kDataLoss,
        StrCat("rank ", r, " (", context_.fabric.AddressOf(static_cast<int>(r)),
               ") has put what rank ", context_.fabric.rank(),
               " does not await into slot ", index_));
  }
  return Status();
}

void PlacedSlot::PutContribution(int peer, int landing,
                                 const PlacedHeader& header,
                                 ConstBufferView payload) {
  std::byte* const front =
      memory_ + context_.layout.headers +
      static_cast<std::size_t>(context_.MemberOf(peer)) * kPlacedHeaderBytes;
  EncodePlacedHeader(header, front);
  const ConstBufferView pieces[] = {{front, kPlacedHeaderBytes, {}}, payload};
  const RemotePlace there = context_.places.SlotsOf(peer).At(
      offset_ + context_.layout.LandingOf(landing));
  ++payloads_;
  context_.places.Put(peer, pieces, there,
                      NoticeOf(PlacedPhase::kContribution, false),
                      {&PlacedSlot::OnPayloadPut, this, 0});
}

void PlacedSlot::OnPayloadPut(void* self, std::uint64_t, std::uint32_t,
                              const Status& status) {
  auto& slot = *static_cast<PlacedSlot*>(self);
  if (--slot.payloads_ > 0) return;
  Done done = slot.told_;
  done.cookie += kPayloadsLeft;
  done(status);
}

void PlacedSlot::PutSum(int peer, RemotePlace there, std::size_t bytes,
                        bool nonfinite) {
  const ConstBufferView pieces[] = {{sum(), bytes, {}}};
  ++lent_;
  context_.places.Put(peer, pieces, there,
                      NoticeOf(PlacedPhase::kSum, nonfinite),
                      {&PlacedSlot::OnSumPut, this, 0});
}

void PlacedSlot::OnSumPut(void* self, std::uint64_t, std::uint32_t,
                          const Status&) {
  --static_cast<PlacedSlot*>(self)->lent_;
}

// What is not for the segment that runs is for the next one.
void PlacedSlot::ArriveEarly(int peer, std::uint32_t number) {
  const PlacedNotice notice = DecodeNotice(number);
  std::uint8_t& bits = peers_[static_cast<std::size_t>(peer)];
  const std::uint32_t next = (generation_ + 1) & kGenerationMask;
  if (notice.generation != next || (bits & kEarly) != 0 ||
      notice.phase != PlacedPhase::kContribution) {
    return context_.fabric.Fail(Refuse(peer, notice));
  }
  bits |= kEarly;
  ++early_;
}

Status PlacedSlot::Refuse(int peer, PlacedNotice notice) const {
  const bool sum = notice.phase == PlacedPhase::kSum;
  return Status(
      StatusCode::kDataLoss,
      StrCat("rank ", peer, " (", context_.fabric.AddressOf(peer), ") has put ",
             sum ? "a sum" : "a contribution", " into slot ", index_,
             " for its use number ", notice.generation, ", but rank ",
             context_.fabric.rank(), running_ ? " is in" : " is done with",
             " use ", generation_,
             HasCome(notice.phase, peer) ? " and has that already" : ""));
}

Status PlacedSlot::CheckEarly(int peer, std::uint64_t last_done) const {
  if ((peers_[static_cast<std::size_t>(peer)] & kEarly) == 0) return Status();
  const std::uint64_t call = HeaderOf(peer).call;
  if (call > last_done) return Status();
  return Status(StatusCode::kInvalidArgument,
                StrCat("rank ", peer, " (", context_.fabric.AddressOf(peer),
                       ") has put its part of collective #", call,
                       ", which rank ", context_.fabric.rank(),
                       " has finished without it: the ranks call different"
                       " collectives"));
}

PlacedSlots::PlacedSlots(RemotePlaces& places, Fabric& fabric,
                         const PlacedLayout& layout, const Group& group)
    : fabric_(fabric), places_(places) {
  assert(places.slots().bytes >=
         layout.SlotOf(kGroupWindow, layout.group_slots));
  windows_.reserve(kPlacedWindows);
  for (int w = 0; w < kPlacedWindows; ++w) {
    const bool lent = w == kGroupWindow;
    Window& window = windows_.emplace_back(
        PlacedContext{places, fabric, layout,
                      PlacesIn(lent ? Group() : group, fabric.size())});
    for (int s = 0; s < layout.SlotsIn(w); ++s) {
      window.slots.push_back(
          std::make_unique<PlacedSlot>(window.context, w, s));
    }
  }
  places.SetSink(this);
}

PlacedSlots::~PlacedSlots() { places_.SetSink(nullptr); }

bool PlacedSlots::GroupIsQuiet() const {
  const Window& window = windows_[kGroupWindow];
  return group_begun_ || window.calls > 0 ||
         std::all_of(window.slots.begin(), window.slots.end(),
                     [](const auto& slot) { return slot->free(); });
}

// Nothing more comes from the group before: its calls have ended here, so
// everything that its members had to place here has come.
bool PlacedSlots::BeginGroup(const PlacedLayout& layout, const Group& group) {
  Window& window = Of(kGroupWindow);
  if (group_begun_ || window.calls > 0 || window.slots.empty() ||
      !GroupIsQuiet()) {
    return false;
  }
  group_begun_ = true;
  window.context.layout = layout;
  window.context.members = PlacesIn(group, fabric_.size());
  window.begun = window.done_call = 0;
  for (const auto& slot : window.slots) slot->Restart();
  return true;
}

PlacedSlot* PlacedSlots::Take(int window) {
  Window& of = Of(window);
  PlacedSlot* const slot = of.slots[of.begun % of.slots.size()].get();
  if (!slot->free()) return nullptr;
  ++of.begun;
  return slot;
}

void PlacedSlots::CallDone(int window, std::uint64_t call) {
  Window& of = Of(window);
  --of.calls;
  of.done_call = call;
  for (const auto& slot : of.slots) {
    for (int r = 0; slot->has_early() && r < fabric_.size(); ++r) {
      FailIfTooLate(of, *slot, r);
    }
  }
}

void PlacedSlots::Abandon() {
  for (Window& window : windows_) {
    window.calls = 0;
    for (const auto& slot : window.slots) slot->Abandon();
  }
}

// Ends the job because of a notice of something that has no place here.
void PlacedSlots::Refuse(int peer, std::uint32_t number) {
  const PlacedNotice notice = DecodeNotice(number);
  std::string why = ", which exchanges nothing with it in this way";
  if (notice.window < kPlacedWindows &&
      Of(notice.window).context.MemberOf(peer) >= 0) {
    why = StrCat(", which has ", Of(notice.window).slots.size());
  }
  fabric_.Fail(Status(StatusCode::kDataLoss,
                      StrCat("rank ", peer, " (", fabric_.AddressOf(peer),
                             ") has put something into slot ", notice.slot,
                             " of rank ", fabric_.rank(), why)));
}

void PlacedSlots::OnNotice(int peer, std::uint32_t bits) {
  if (!fabric_.status().ok()) return;
  const PlacedNotice notice = DecodeNotice(bits);
  if (notice.window >= kPlacedWindows) return Refuse(peer, bits);
  Window& of = Of(notice.window);
  if (of.context.MemberOf(peer) < 0 ||
      static_cast<std::size_t>(notice.slot) >= of.slots.size()) {
    return Refuse(peer, bits);
  }
  PlacedSlot& slot = *of.slots[static_cast<std::size_t>(notice.slot)];
  slot.Arrive(peer, notice);
  if (slot.has_early()) FailIfTooLate(of, slot, peer);
}

void PlacedSlots::FailIfTooLate(const Window& window, const PlacedSlot& slot,
                                int peer) {
  const Status why = slot.CheckEarly(peer, window.done_call);
  if (!why.ok()) fabric_.Fail(why);
}

}  // namespace gradientflow
