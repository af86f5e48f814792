#include "gradientflow/communicator/messages.h"

#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "transports/wire.h"

namespace gradientflow {
namespace {

Status CheckPeer(const CallGroup& group, int peer) {
  if (peer >= 0 && peer < group.size && peer != group.rank) return Status();
  return Status(StatusCode::kInvalidArgument,
                StrCat("peer ", peer, ": expected another rank, 0 to ",
                       group.size - 1, ", not ", group.rank));
}

Status CheckBytes(std::size_t bytes) {
  if (bytes <= kMaxPayloadBytes) return Status();
  return Status(StatusCode::kInvalidArgument,
                StrCat("message of ", bytes, " bytes: expected at most ",
                       kMaxPayloadBytes));
}

}  // namespace

Messages::~Messages() {
  FailAll(Status(StatusCode::kAborted, "the session was closed"));
}

// Slots are reused, so a message allocates nothing.
Done Messages::Track(Done done) {
  ++in_flight_;
  if (free_slots_.empty()) {
    free_slots_.push_back(slots_.size());
    slots_.emplace_back();
  }
  const std::uint64_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot] = done;
  return {&Messages::OnDone, this, slot};
}

// The slot is free again before `done` runs, which may start new calls.
void Messages::OnDone(void* self, std::uint64_t slot, std::uint32_t flags,
                      const Status& status) {
  auto& messages = *static_cast<Messages*>(self);
  const Done done = messages.slots_[slot];
  messages.free_slots_.push_back(slot);
  --messages.in_flight_;
  ++messages.advances_;
  done(status, flags);
}

MessageId Messages::Next(Counter* counts, const CallGroup& group, int peer,
                         std::uint32_t tag) const {
  const std::uint32_t number =
      tag < kNumberedTags ? (*counts)[{group.id, peer, tag}]++ : 0;
  return {PointToPointTag(tag, number), group.id};
}

// Returns the id that Next() will give to the next receive.
MessageId Messages::Awaited(const CallGroup& group, int peer,
                            std::uint32_t tag) const {
  const auto found = received_.find({group.id, peer, tag});
  const std::uint32_t number = found == received_.end() ? 0 : found->second;
  return {PointToPointTag(tag, number), group.id};
}

Status Messages::Send(const CallGroup& group, int peer, std::uint32_t tag,
                      ConstBufferView src, Done done) {
  GF_RETURN_IF_ERROR(CheckPeer(group, peer));
  GF_RETURN_IF_ERROR(CheckBytes(src.bytes));
  fabric_.Send(group.FabricRank(peer), Next(&sent_, group, peer, tag), src, {},
               Track(done));
  return Status();
}

// A receive queues up behind a receive from any rank with the same tag, which
// might match the same message and began first.
Status Messages::Recv(const CallGroup& group, int peer, std::uint32_t tag,
                      BufferView dst, int* source, Done done) {
  if (peer != kAnyRank) GF_RETURN_IF_ERROR(CheckPeer(group, peer));
  const Receive receive{&group, peer, dst, source, done};
  ++in_flight_;
  if (peer == kAnyRank || waiting_.contains({group.id, tag})) {
    waiting_[{group.id, tag}].push_back(receive);
  } else {
    Post(receive, peer, tag);
  }
  return Status();
}

// REQUIRES that the receive is counted as in flight already.
void Messages::Post(const Receive& receive, int peer, std::uint32_t tag) {
  if (receive.source != nullptr) *receive.source = peer;
  --in_flight_;
  ++advances_;
  fabric_.Recv(receive.group->FabricRank(peer),
               Next(&received_, *receive.group, peer, tag), receive.dst, 0,
               Track(receive.done));
}

// Begins the receives that can begin, from the front of the queue. Returns
// whether any did.
bool Messages::Serve(std::uint32_t tag, std::deque<Receive>* queue) {
  bool moved = false;
  while (!queue->empty()) {
    const Receive& front = queue->front();
    const CallGroup& group = *front.group;
    int peer = front.peer;
    for (int r = 0; peer == kAnyRank && r < group.size; ++r) {
      if (r != group.rank &&
          fabric_.HasMessage(group.FabricRank(r), Awaited(group, r, tag))) {
        peer = r;
      }
    }
    if (peer == kAnyRank) return moved;
    Post(front, peer, tag);
    queue->pop_front();
    moved = true;
  }
  return moved;
}

bool Messages::Poll() {
  bool moved = !dropped_.empty();
  for (const Done& done : std::exchange(dropped_, {})) {
    --in_flight_;
    done(Status(StatusCode::kAborted, "its group was closed"));
  }
  if (waiting_.empty()) return moved;
  if (!fabric_.status().ok()) {
    FailAll(fabric_.status());
    return true;
  }
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    moved |= Serve(at->first.second, &at->second);
    if (!at->second.empty())
      FailIfDeserted(at->second.front(), at->first.second);
    at = at->second.empty() ? waiting_.erase(at) : std::next(at);
  }
  return moved;
}

// The fabric finds a departed peer of a posted receive. A receive from any rank
// is not posted yet, so it has to be checked here. If no rank that may send is
// linked and alive, those that are not linked may have left unnoticed.
void Messages::FailIfDeserted(const Receive& receive, std::uint32_t tag) {
  if (fabric_.departed() == 0 && fabric_.source() == nullptr) return;
  const CallGroup& group = *receive.group;
  std::vector<int> unknown;
  std::optional<int> gone;  // One that was never linked, if there is one.
  for (int r = 0; r < group.size; ++r) {
    const bool may_send = receive.peer == kAnyRank || receive.peer == r;
    const int rank = group.FabricRank(r);
    if (r == group.rank || !may_send) continue;
    const bool linked = fabric_.link(rank) != nullptr;
    if (fabric_.HasDeparted(rank)) {
      if (!gone || !linked) gone = rank;
      continue;
    }
    if (linked) return;
    unknown.push_back(rank);
  }
  for (const int rank : unknown) fabric_.AskForLink(rank);
  if (!unknown.empty() || !gone) return;
  fabric_.FailDeparted(
      *gone,
      Status(StatusCode::kUnavailable,
             StrCat("all ranks that rank ", fabric_.rank(),
                    " could receive tag ", tag, " from have left the job")));
}

void Messages::FailAll(const Status& why) {
  for (const Done& done : std::exchange(dropped_, {})) {
    --in_flight_;
    done(why, 0);
  }
  const auto waiting = std::exchange(waiting_, {});
  for (const auto& [key, queue] : waiting) {
    for (const Receive& receive : queue) {
      --in_flight_;
      receive.done(why, 0);
    }
  }
}

void Messages::Forget(GroupId group) {
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    if (at->first.first != group) {
      ++at;
      continue;
    }
    for (const Receive& receive : at->second) {
      dropped_.push_back(receive.done);
    }
    at = waiting_.erase(at);
  }
  const auto of_group = [group](const auto& entry) {
    return std::get<0>(entry.first) == group;
  };
  std::erase_if(sent_, of_group);
  std::erase_if(received_, of_group);
}

}  // namespace gradientflow
