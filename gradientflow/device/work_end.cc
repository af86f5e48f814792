#include "gradientflow/device/work_end.h"

#include <utility>

namespace gradientflow {

Result<bool> WorkEnd::Look(Part* part) {
  if (part->recorded == nullptr) {
    if (part->own == nullptr) {
      Result<std::unique_ptr<Event>> made = device_.NewEvent();
      if (!made.ok()) return made.status();
      part->own = std::move(made).value();
    }
    GF_RETURN_IF_ERROR(part->stream->Record(part->own.get()));
    part->recorded = part->own.get();
  }
  return part->recorded->Query();
}

bool WorkEnd::Reached() {
  doubt_ = Status();
  std::erase_if(parts_, [this](Part& part) {
    const Result<bool> reached = Look(&part);
    if (reached.ok()) return reached.value();
    if (MeansLost(reached.status())) return true;
    doubt_ = reached.status();
    return false;
  });
  return parts_.empty();
}

}  // namespace gradientflow
