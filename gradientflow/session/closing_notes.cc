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
    : fabric_(fabric), id_(PointToPointTag(0, 0), id) {
  for (int r = 0; r < group.size; ++r) {
    if (r != group.rank) peers_.push_back(group.FabricRank(r));
  }
}

Status ClosingNotes::Check(std::uint64_t steps, bool waits) const {
  for (const int peer : peers_) {
    const std::optional<std::uint64_t> note = fabric_.Told(peer, id_);
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
    // Only with the notes of all others does this rank know that they are
    // inside, too.
    if (inside && fabric_.status().ok()) fabric_.AskForLink(peer);
    fabric_.Tell(peer, id_, NoteOf(steps, inside));
  }
}

ClosingNotes::Others ClosingNotes::Ask(std::uint64_t steps) const {
  bool all = true;
  for (const int peer : peers_) {
    const std::optional<std::uint64_t> note = fabric_.Told(peer, id_);
    if (!note) {
      all = false;
    } else if (StepsOf(*note) <= steps && *note != NoteOf(steps, true)) {
      return Others::kGone;
    }
  }
  return all ? Others::kInside : Others::kAwaited;
}

void ClosingNotes::Close() {
  fabric_.CloseGroup(id_.group);  // Drops the notes that have arrived.
}

}  // namespace gradientflow
