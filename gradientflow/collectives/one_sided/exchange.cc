#include "gradientflow/collectives/one_sided/exchange.h"

#include <utility>

#include "gradientflow/collectives/group.h"

namespace gradientflow {

Schedule OneSided(const CallShape& shape, Slice shown,
                  std::size_t most_elements, std::vector<Action> actions) {
  Schedule schedule;
  if (most_elements == 0) return schedule;
  if (shape.size == 1) {
    AppendRound(std::move(actions), &schedule);
    return schedule;
  }
  schedule.shown = shown;
  schedule.mailed = most_elements * shape.wire_element_bytes <= kMailBytes;
  AppendRound({Sync()}, &schedule);
  AppendRound(std::move(actions), &schedule);
  if (!schedule.mailed) AppendRound({Sync()}, &schedule);
  return schedule;
}

void AppendPull(int rank, int peer, Slice src, Slice dst,
                std::vector<Action>* actions) {
  Action action = Copy(src, dst);
  if (peer != rank) {
    action.kind = Action::Kind::kPull;
    action.peer = peer;
  }
  actions->push_back(action);
}

Price OneSidedPrice(const CallQuestion& question, double shown_bytes,
                    double moved_bytes) {
  Price price;
  if (question.size() == 1) return price;
  const double syncs = shown_bytes <= double{kMailBytes} ? 1 : 2;
  price.AddSyncs(syncs, moved_bytes, question.model.inside);
  return price;
}

}  // namespace gradientflow
