#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/schedule.h"
#include "tests/collectives/symbolic_rank.h"

// Runs the schedules of all ranks without a transport, and checks bounds,
// message lengths, leftovers, deadlocks, slices that are written while in use,
// and values that are scaled never, twice, or added to unscaled ones. Where a
// sender says where its message lands, that must be what the receiver expects.
// Where schedules place messages, these are written there as soon as they are
// sent, whether the receiver has come so far or not.
namespace gradientflow::testing {

class SymbolicExecutor {
 public:
  SymbolicExecutor(std::vector<SymbolicRank>* ranks, SymbolicOptions options)
      : ranks_(*ranks), options_(std::move(options)), states_(ranks->size()) {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      states_[r].scratch.resize(ranks_[r].schedule.scratch_elements);
      ranks_[r].raw_uses.assign(ranks_[r].data.size(), 0);
      ranks_[r].final_uses.assign(ranks_[r].data.size(), 0);
      if (options_.turns.size() < ranks_.size()) {
        options_.turns.push_back(static_cast<int>(r));
      }
    }
  }

  // The first thing that went wrong, or "".
  std::string Run() {
    for (bool progress = true; progress && error_.empty();) {
      progress = false;
      for (int r : options_.turns) {
        progress = Advance(static_cast<std::size_t>(r)) || progress;
        if (!error_.empty()) return error_;
      }
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (!Finished(r)) {
        return StrCat("deadlock: rank ", r, " waits in round ",
                      states_[r].round, " of ",
                      ranks_[r].schedule.rounds.size());
      }
    }
    CheckLast();
    for (const auto& [pair, queue] : wire_) {
      if (!queue.empty()) {
        return StrCat(queue.size(), " messages left over from rank ",
                      pair.first, " to ", pair.second);
      }
    }
    return error_;
  }

  // Whether all ranks had started before the first one finished.
  bool all_began_before_any_finished() const { return barrier_held_; }

 private:
  struct State {
    Cells scratch;
    Cells mail;  // The copy that peers read, if the schedule mails.
    std::size_t round = 0;
    std::size_t local = 0;  // Actions of the round done, after messages.
    bool posted = false;
    bool received = false;
    int syncs = 0;
    bool in_sync = false;
    bool began = false;
  };

  bool Finished(std::size_t r) const {
    return states_[r].round == ranks_[r].schedule.rounds.size();
  }

  void Fail(std::size_t r, const std::string& what) {
    if (error_.empty()) {
      error_ = StrCat("rank ", r, " round ", states_[r].round, ": ", what);
    }
  }

  // Runs a round, or the part of it before the next wait.
  bool Advance(std::size_t r) {
    State& state = states_[r];
    state.began = true;
    if (Finished(r)) return false;
    const auto& actions = ranks_[r].schedule.rounds[state.round];
    bool progress = false;
    if (!state.posted) {
      if (actions.empty()) Fail(r, "empty round");
      CheckHazards(r, actions);
      for (const Action& action : actions) {
        if (action.kind == Action::Kind::kSend) PostSend(r, action);
      }
      state.posted = true;
      progress = true;
    }
    if (!state.received) {
      if (!AllArrived(r, actions)) return progress;
      for (const Action& action : actions) {
        if (action.kind == Action::Kind::kRecv) Receive(r, action);
      }
      state.received = true;
    }
    for (; state.local < actions.size(); ++state.local) {
      const Action& action = actions[state.local];
      if (action.kind == Action::Kind::kSync) {
        if (!state.in_sync) Arrive(r);
        progress = progress || !state.in_sync;
        state.in_sync = !SyncReached(r);
        if (state.in_sync) return progress;
      } else {
        RunLocal(r, action);
      }
    }
    const std::size_t next = state.round + 1;
    state.round = next;
    state.local = 0;
    state.posted = state.received = false;
    if (Finished(r)) {
      barrier_held_ =
          barrier_held_ && std::all_of(states_.begin(), states_.end(),
                                       [](const State& s) { return s.began; });
    }
    return true;
  }

  void CheckLast() {
    for (std::size_t r = 0; options_.unscales && r < ranks_.size(); ++r) {
      for (const Cell& cell : ranks_[r].data) {
        if (!cell.last) Fail(r, "a result is not unscaled");
      }
    }
  }

  // The last form of a result that does not have it yet.
  Cell Last(std::size_t r, Cell cell) {
    if (options_.unscales && cell.last) Fail(r, "unscales twice");
    cell.last = true;
    return cell;
  }

  bool Shares(std::size_t a, std::size_t b) const {
    const auto& host = options_.topology.host;
    return host.empty() || host[a] == host[b];
  }

  void Arrive(std::size_t r) {
    ++states_[r].syncs;
    const Schedule& schedule = ranks_[r].schedule;
    if (!schedule.mailed) return;
    if (!schedule.shown || states_[r].syncs > 1) {
      return Fail(r, "mails nothing, or twice");
    }
    const Cell* shown = At(r, *schedule.shown);
    if (shown == nullptr) return;
    states_[r].mail.assign(shown, shown + schedule.shown->count);
  }

  // Where rank r reads the slice of what rank q shows.
  const Cell* SeenOf(std::size_t r, std::size_t q, const Slice& slice) {
    const Schedule& schedule = ranks_[q].schedule;
    if (states_[q].syncs == 0 && r != q) Fail(r, "reads before a sync");
    if (!schedule.shown) return At(q, slice);
    const Slice& shown = *schedule.shown;
    if (slice.space != shown.space || shown.offset != 0 ||
        slice.offset + slice.count > shown.count) {
      Fail(r, StrCat("reads what rank ", q, " does not show"));
      return nullptr;
    }
    if (!schedule.mailed && Finished(q)) Fail(r, "reads after the last sync");
    return schedule.mailed ? states_[q].mail.data() + slice.offset
                           : At(q, slice);
  }

  bool SyncReached(std::size_t r) const {
    for (std::size_t q = 0; q < ranks_.size(); ++q) {
      if (Shares(r, q) && states_[q].syncs < states_[r].syncs) return false;
    }
    return true;
  }

  Cell* At(std::size_t r, const Slice& slice) {
    Cells& space = slice.space == Slice::Space::kData    ? ranks_[r].data
                   : slice.space == Slice::Space::kInput ? ranks_[r].input
                                                         : states_[r].scratch;
    if (slice.offset + slice.count > space.size()) {
      Fail(r, StrCat("slice [", slice.offset, ", +", slice.count, ") of ",
                     space.size(), " elements"));
      return nullptr;
    }
    return space.data() + slice.offset;
  }

  static bool Overlap(const Slice& a, const Slice& b) {
    return a.space == b.space && a.offset < b.offset + b.count &&
           b.offset < a.offset + a.count;
  }

  // An arriving message may not land in the buffer of another message of the
  // round.
  void CheckHazards(std::size_t r, const std::vector<Action>& actions) {
    for (const Action& in : actions) {
      if (in.kind != Action::Kind::kRecv) continue;
      if (in.dst.space == Slice::Space::kInput) Fail(r, "input is read-only");
      for (const Action& other : actions) {
        if (&other == &in) continue;
        if (other.kind == Action::Kind::kSend && Overlap(in.dst, other.src)) {
          Fail(r, "receives where it sends from");
        }
        if (other.kind == Action::Kind::kRecv && Overlap(in.dst, other.dst)) {
          Fail(r, "two receives land in one place");
        }
      }
    }
  }

  bool ScalesFirst(std::size_t r) const {
    return options_.mean == MeanScaling::kBeforeSum &&
           ranks_[r].schedule.multi_hop;
  }

  Cell Scaled(Cell cell) const {
    return {cell.value / static_cast<double>(ranks_.size()), cell.scaled + 1,
            cell.last};
  }

  Cell OnWire(Cell cell) const {
    const double q = options_.wire_quantum;
    return {q == 0 ? cell.value : std::nearbyint(cell.value / q) * q,
            cell.scaled, false};
  }

  // The result of a reduction, given `cell` before any scaling of the sum.
  Cell Finish(std::size_t r, const Action& action, Cell cell) const {
    const bool none = options_.mean == MeanScaling::kNone;
    const bool scale = ScalesFirst(r) ? action.raw : action.final;
    return scale && !none ? Scaled(cell) : cell;
  }

  Cell Add(std::size_t r, Cell a, Cell b) {
    if (a.scaled != b.scaled) Fail(r, "adds scaled to unscaled values");
    if (options_.unscales && (a.last || b.last)) Fail(r, "adds a result");
    return {a.value + b.value, a.scaled, false};
  }

  void CountUses(std::size_t r, const Action& action, const Slice& slice) {
    if (slice.space != Slice::Space::kData) return;
    for (std::size_t i = 0; i < slice.count; ++i) {
      ranks_[r].raw_uses[slice.offset + i] += action.raw ? 1 : 0;
      ranks_[r].final_uses[slice.offset + i] += action.final ? 1 : 0;
    }
  }

  void PostSend(std::size_t r, const Action& action) {
    const bool scratch = action.src.space == Slice::Space::kScratch;
    if (scratch && !options_.plain) Fail(r, "sends scratch");
    if (action.raw && action.settle) Fail(r, "raw and settle on one send");
    if (action.peer < 0 || action.peer >= static_cast<int>(ranks_.size()) ||
        action.peer == static_cast<int>(r)) {
      Fail(r, StrCat("sends to ", action.peer));
      return;
    }
    Cell* src = At(r, action.src);
    if (src == nullptr) return;
    CountUses(r, action, action.src);
    Cells message;
    for (std::size_t i = 0; i < action.src.count; ++i) {
      if (options_.unscales && src[i].last != action.relay) {
        Fail(r, action.relay ? "relays what is no result" : "sends a result");
      }
      const bool scale = action.raw && ScalesFirst(r);
      message.push_back(OnWire(scale ? Scaled(src[i]) : src[i]));
      if (!action.settle) continue;
      if (action.src.space == Slice::Space::kInput) Fail(r, "settles input");
      src[i] = action.last ? Last(r, message.back()) : message.back();
    }
    if (action.src.count == 0) return;
    if (Places(r)) Place(r, action, message);
    wire_[{static_cast<int>(r), action.peer}].push_back(
        {action.there, std::move(message)});
  }

  bool Places(std::size_t r) const { return ranks_[r].schedule.placing > 0; }

  void Place(std::size_t r, const Action& action, const Cells& message) {
    const auto peer = static_cast<std::size_t>(action.peer);
    if (action.there.count != action.src.count) {
      return Fail(r, StrCat("places ", action.src.count, " elements on ",
                            action.there.count));
    }
    const Slice& there = action.there;
    const Schedule& theirs = ranks_[peer].schedule;
    if (theirs.placing != ranks_[r].schedule.placing) {
      return Fail(r,
                  StrCat("places messages among ", ranks_[r].schedule.placing,
                         " ranks, and rank ", peer, " among ", theirs.placing));
    }
    if (there.space == Slice::Space::kData &&
        there.offset < theirs.placed_from) {
      return Fail(r, "places a message before what is placed");
    }
    if (there.space == Slice::Space::kScratch &&
        (there.offset % there.count != 0 ||
         theirs.scratch_elements !=
             there.count * (static_cast<std::size_t>(theirs.placing) - 1))) {
      return Fail(r, "places a message between two landings");
    }
    Cell* at = At(peer, there);
    if (at == nullptr) return;
    std::copy(message.begin(), message.end(), at);
    if (there.space == Slice::Space::kScratch) return;
    for (std::size_t i = 0; i < there.count; ++i) at[i].last = true;
  }

  bool AllArrived(std::size_t r, const std::vector<Action>& actions) {
    std::map<int, std::size_t> wanted;
    for (const Action& action : actions) {
      if (action.kind == Action::Kind::kRecv && action.dst.count > 0) {
        ++wanted[action.peer];
      }
    }
    return std::all_of(wanted.begin(), wanted.end(), [&](const auto& want) {
      return wire_[{want.first, static_cast<int>(r)}].size() >= want.second;
    });
  }

  void Receive(std::size_t r, const Action& action) {
    if (action.dst.count == 0) return;
    auto& queue = wire_[{action.peer, static_cast<int>(r)}];
    const auto [there, message] = std::move(queue.front());
    queue.pop_front();
    Cell* dst = At(r, action.dst);
    const bool same = there.space == action.dst.space &&
                      there.offset == action.dst.offset &&
                      there.count == action.dst.count;
    if (!same && (Places(r) || there.count > 0)) {
      Fail(r, StrCat("rank ", action.peer,
                     " places a message elsewhere than"
                     " this rank expects it"));
    }
    if (Places(r)) return;
    if (message.size() != action.dst.count) {
      Fail(r, StrCat("expected ", action.dst.count, " elements from rank ",
                     action.peer, ", got ", message.size()));
    } else if (dst != nullptr) {
      std::copy(message.begin(), message.end(), dst);
      if (action.dst.space == Slice::Space::kScratch) return;
      for (std::size_t i = 0; i < action.dst.count; ++i) dst[i].last = true;
    }
  }

  void RunLocal(std::size_t r, const Action& action) {
    switch (action.kind) {
      case Action::Kind::kReduce:
        return Reduce(r, action);
      case Action::Kind::kReduceMany:
        return ReduceMany(r, action);
      case Action::Kind::kCopy:
        return CopySlice(r, action);
      case Action::Kind::kPull:
        return Pull(r, action);
      case Action::Kind::kPullReduce:
        return PullReduce(r, action);
      case Action::Kind::kPush:
        return Push(r, action.dst);
      case Action::Kind::kSend:
      case Action::Kind::kRecv:
      case Action::Kind::kSync:
        return;
    }
  }

  void Reduce(std::size_t r, const Action& action) {
    Cell* dst = At(r, action.dst);
    const Cell* src = At(r, action.src);
    if (dst == nullptr || src == nullptr) return;
    CountUses(r, action, action.dst);
    const bool none = options_.mean == MeanScaling::kNone;
    for (std::size_t i = 0; i < action.dst.count; ++i) {
      Cell mine = dst[i];
      if (ScalesFirst(r) && action.raw) mine = Scaled(mine);
      dst[i] = Add(r, mine, src[i]);
      if (!none && !ScalesFirst(r) && action.final) dst[i] = Scaled(dst[i]);
    }
  }

  void ReduceMany(std::size_t r, const Action& action) {
    if (action.sources + 1 > kMaxReduceParties) Fail(r, "too many sources");
    const std::size_t n = action.dst.count;
    if (action.src.count != n || action.own.count != n)
      Fail(r, "uneven slices");
    Slice landings = action.src;
    landings.count *= static_cast<std::size_t>(action.sources);
    Cell* dst = At(r, action.dst);
    const Cell* own = At(r, action.own);
    const Cell* src = At(r, landings);
    if (dst == nullptr || own == nullptr || src == nullptr) return;
    CountUses(r, action, action.dst);
    for (std::size_t i = 0; i < n; ++i) {
      Cell sum;
      for (int s = 0; s <= action.sources; ++s) {
        const int landing = s < action.own_place ? s : s - 1;
        const Cell term = s == action.own_place
                              ? own[i]
                              : src[static_cast<std::size_t>(landing) * n + i];
        sum = s == 0 ? term : Add(r, sum, term);
      }
      dst[i] = Finish(r, action, sum);
      if (action.last) dst[i] = Last(r, dst[i]);
    }
  }

  void CopySlice(std::size_t r, const Action& action) {
    Cell* dst = At(r, action.dst);
    const Cell* src = At(r, action.src);
    if (action.src.count != action.dst.count) Fail(r, "uneven copy");
    if (dst == nullptr || src == nullptr) return;
    std::copy(src, src + action.dst.count, dst);
  }

  void Pull(std::size_t r, const Action& action) {
    if (action.src.count != action.dst.count) Fail(r, "uneven pull");
    const auto peer = static_cast<std::size_t>(action.peer);
    const Cell* src = SeenOf(r, peer, action.src);
    Cell* dst = At(r, action.dst);
    if (dst == nullptr || src == nullptr) return;
    std::copy(src, src + action.dst.count, dst);
  }

  void PullReduce(std::size_t r, const Action& action) {
    const Slice& src = action.src.count > 0 ? action.src : action.dst;
    if (src.count != action.dst.count) Fail(r, "uneven pull");
    for (std::size_t i = 0; i < action.dst.count; ++i) {
      const Slice at{action.dst.space, action.dst.offset + i, 1};
      const Slice from{src.space, src.offset + i, 1};
      Cell sum;
      bool first = true;
      int parties = 0;
      for (std::size_t q = 0; q < ranks_.size(); ++q) {
        if (!Shares(r, q)) continue;
        const Cell* term = SeenOf(r, q, from);
        if (term == nullptr) return;
        sum = first ? *term : Add(r, sum, *term);
        first = false;
        ++parties;
      }
      if (parties > kMaxReduceParties) Fail(r, "too many sharing ranks");
      *At(r, at) = Finish(r, action, sum);
      if (action.last) *At(r, at) = Last(r, *At(r, at));
    }
    CountUses(r, action, action.dst);
    if (action.push) Push(r, action.dst);
  }

  void Push(std::size_t r, const Slice& slice) {
    const Cell* src = At(r, slice);
    for (std::size_t q = 0; q < ranks_.size(); ++q) {
      if (q == r || !Shares(r, q)) continue;
      Cell* dst = At(q, slice);
      if (src == nullptr || dst == nullptr) return;
      std::copy(src, src + slice.count, dst);
    }
  }

  std::vector<SymbolicRank>& ranks_;
  SymbolicOptions options_;
  std::vector<State> states_;
  // What has been sent, and where it lands.
  std::map<std::pair<int, int>, std::deque<std::pair<Slice, Cells>>> wire_;
  std::string error_;
  bool barrier_held_ = true;
};

inline std::string Execute(std::vector<SymbolicRank>* ranks,
                           const SymbolicOptions& options = {}) {
  return SymbolicExecutor(ranks, options).Run();
}

}  // namespace gradientflow::testing
