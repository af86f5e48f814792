#include "gradientflow/session/closing_notes.h"

#include <optional>

#include "gradientflow/base/str_cat.h"
#include "transports/tags.h"

namespace gradientflow {
namespace {

// A note is one number.
std::uint64_t NoteOf(std::uint64_t steps, bool inside) {
  return 2 * steps + (inside ? 1 : 0);
}
std::uint64_t StepsOf(std::uint64_t note) { return note / 2; }

}  // namespace

ClosingNotes::ClosingNotes(Fabric& fabric, const CallGroup& group, GroupId id)
    : fabric_(fabric),
      note_id_(PointToPointTag(0, 0), id),
      round_id_(PointToPointTag(1, 0), id) {
  const int size = group.size;
  for (int r = 0; r < size; ++r) {
    if (r != group.rank) peers_.push_back(group.FabricRank(r));
  }
  for (int distance = 1; distance < size; distance *= 2) {
    rounds_.push_back({group.FabricRank((group.rank + size - distance) % size),
                       group.FabricRank((group.rank + distance) % size)});
  }
}

Status ClosingNotes::Check(std::uint64_t steps, bool waits) const {
  for (const int peer : peers_) {
    const std::optional<std::uint64_t> note = fabric_.Told(peer, note_id_);
    if (!note || StepsOf(*note) > steps) continue;
    if (!waits && *note == NoteOf(steps, true)) continue;
    return Status(
        StatusCode::kUnavailable,
        StrCat("rank ", peer, " has closed its session after ", StepsOf(*note),
               " steps, and takes no part in this one"));
  }
  return Status();
}

void ClosingNotes::Tell(std::uint64_t steps, bool inside) {
  for (const int peer : peers_) {
    fabric_.Tell(peer, note_id_, NoteOf(steps, inside));
  }
  if (!inside || !fabric_.status().ok()) return;
  for (const Round& round : rounds_) {
    fabric_.AskForLink(round.from);
    fabric_.AskForLink(round.to);
  }
  TellRound(NoteOf(steps, true));
}

// Each round is with another rank, so that their numbers need no names.
void ClosingNotes::TellRound(std::uint64_t note) {
  if (told_ == rounds_.size()) return;
  fabric_.Tell(rounds_[told_++].to, round_id_, note);
}

// Returns the note of a rank that closes after a later step, if it has sent
// one.
std::optional<std::uint64_t> ClosingNotes::Past(int peer,
                                                std::uint64_t steps) const {
  const auto note = fabric_.Told(peer, note_id_);
  return note && StepsOf(*note) > steps ? note : std::nullopt;
}

// A rank that is past the step speaks for all, since each of them has sent it
// what the step needs. A rank that finds out that another one has gone says so
// in its remaining rounds. So all ranks that wait in vain learn of it, round by
// round.
ClosingNotes::Others ClosingNotes::Ask(std::uint64_t steps) {
  const std::uint64_t inside = NoteOf(steps, true);
  const auto gone = [&](const std::optional<std::uint64_t>& note) {
    return note && StepsOf(*note) <= steps && *note != inside;
  };
  bool all = true;
  for (const int peer : peers_) {
    all = all && !gone(fabric_.Told(peer, note_id_));
  }
  while (all && heard_ < rounds_.size()) {
    auto note = fabric_.Told(rounds_[heard_].from, round_id_);
    if (!note) note = Past(rounds_[heard_].from, steps);
    if (!note) return Others::kAwaited;
    all = !gone(note);
    if (!all) break;
    ++heard_;
    TellRound(inside);
  }
  if (all) return Others::kInside;
  while (told_ < rounds_.size()) TellRound(NoteOf(steps, false));
  return Others::kGone;
}

void ClosingNotes::Close() {
  fabric_.CloseGroup(note_id_.group);  // Drops the notes that have arrived.
}

}  // namespace gradientflow
