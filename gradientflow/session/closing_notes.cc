#include "gradientflow/session/closing_notes.h"

#include <optional>

#include "gradientflow/base/str_cat.h"
#include "transports/tags.h"

namespace gradientflow {

ClosingNotes::ClosingNotes(Fabric& fabric, const CallGroup& group, GroupId id)
    : fabric_(fabric), id_(PointToPointTag(0, 0), id) {
  for (int r = 0; r < group.size; ++r) {
    if (r != group.rank) peers_.push_back(group.FabricRank(r));
  }
}

Status ClosingNotes::Check(std::uint64_t steps) const {
  for (const int peer : peers_) {
    const std::optional<std::uint64_t> finished = fabric_.Told(peer, id_);
    if (!finished || *finished > steps) continue;
    return Status(StatusCode::kUnavailable,
                  StrCat("rank ", peer, " has closed its session after ",
                         *finished, " steps, and takes no part in this one"));
  }
  return Status();
}

void ClosingNotes::Close(std::uint64_t steps) {
  for (const int peer : peers_) fabric_.Tell(peer, id_, steps);
  fabric_.CloseGroup(id_.group);  // Drops the notes that have arrived.
}

}  // namespace gradientflow
