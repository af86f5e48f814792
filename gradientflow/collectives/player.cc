#include "gradientflow/collectives/player.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <utility>
#include <vector>

namespace gradientflow {
namespace {

// Simulates the schedules of all ranks. An event queue starts the rounds of the
// ranks, and lands their messages, in the order of simulated time.
class Player {
 public:
  Player(const std::vector<Schedule>& ranks, const Topology& topology,
         std::size_t element_bytes, const CostModel& model)
      : ranks_(ranks),
        topology_(topology),
        element_bytes_(static_cast<double>(element_bytes)),
        model_(model),
        states_(ranks.size()),
        arrivals_(ranks.size() * ranks.size()) {
    if (topology_.host.empty()) SetDefaultHosts();
    std::map<int, int> sharing;
    for (const int host : topology_.host) ++sharing[host];
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      states_[r].sharing = sharing[topology_.host[r]];
    }
  }

  double Play() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) BeginAt(0, r);
    double end = 0;
    std::size_t finished = 0;
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      if (event.message) {
        Land(event);
      } else if (states_[event.rank].round ==
                 ranks_[event.rank].rounds.size()) {
        end = std::max(end, event.when);
        ++finished;
      } else {
        StartRound(event.when, event.rank);
      }
    }
    return finished == ranks_.size() ? end
                                     : std::numeric_limits<double>::infinity();
  }

 private:
  // Where a rank is: its round, and until when its core and its link inside the
  // host are busy.
  struct State {
    std::size_t round = 0;
    double busy_until = 0;  // The end of the round's own sends.
    bool waiting = false;
    int sharing = 1;  // The ranks of its host.
    // The ranks from which the round wants messages, each once, and how many of
    // all these messages did not arrive yet.
    std::vector<std::size_t> senders;
    std::size_t missing = 0;
    double out_free = 0;
    double in_free = 0;
    double core_free = 0;
    std::size_t syncs = 0;
  };
  // What one rank has sent to another: when it arrived, in order, and how much
  // of it rounds have taken. The round that is waiting wants `wanted` more.
  struct Arrivals {
    std::vector<double> times;
    std::size_t taken = 0;
    std::size_t wanted = 0;

    std::size_t here() const { return times.size() - taken; }
  };
  // The line of a host, which its ranks share.
  struct Line {
    double out_free = 0;
    double in_free = 0;
  };
  // Rank `rank` begins its next round, or a message of it reaches `peer`.
  struct Event {
    double when = 0;
    std::size_t order = 0;  // Breaks ties in the order of creation.
    std::size_t rank = 0;
    bool message = false;
    std::size_t peer = 0;
    double duration = 0;

    bool operator>(const Event& other) const {
      return std::pair(when, order) > std::pair(other.when, other.order);
    }
  };

  void SetDefaultHosts() {
    bool one_sided = false;
    for (const Schedule& schedule : ranks_) {
      for (const auto& round : schedule.rounds) {
        for (const Action& action : round) {
          one_sided = one_sided || action.kind == Action::Kind::kSync;
        }
      }
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      topology_.host.push_back(one_sided ? 0 : static_cast<int>(r));
    }
  }

  const std::vector<Action>& Round(std::size_t r) const {
    return ranks_[r].rounds[states_[r].round];
  }

  void BeginAt(double when, std::size_t r) {
    events_.push({.when = when, .order = ++events_made_, .rank = r});
  }

  // Posts the sends of the round. The round ends in TryFinish(), or with the
  // last rank that arrives at its sync.
  void StartRound(double now, std::size_t r) {
    State& state = states_[r];
    state.busy_until = now;
    state.waiting = true;
    Expect(r);
    bool syncs = false;
    for (const Action& action : Round(r)) {
      if (action.kind == Action::Kind::kSend && action.src.count > 0) {
        PostSend(now, r, action);
      }
      syncs = syncs || action.kind == Action::Kind::kSync;
    }
    if (syncs) return ArriveAtSync(now, r);
    TryFinish(r);
  }

  // A message leaves when this rank's core has issued it and the link is free.
  void PostSend(double now, std::size_t r, const Action& action) {
    const auto peer = static_cast<std::size_t>(action.peer);
    if (peer >= ranks_.size()) return;
    const bool inside = topology_.host[r] == topology_.host[peer];
    const LinkModel& link = inside ? model_.inside : model_.across;
    State& from = states_[r];
    double& out_free =
        inside ? from.out_free : lines_[topology_.host[r]].out_free;
    const double duration = static_cast<double>(action.src.count) *
                            element_bytes_ * link.seconds_per_byte;
    from.core_free = std::max(from.core_free, now) + link.message_seconds;
    const double leaves = std::max(from.core_free, out_free);
    out_free = leaves + duration;
    from.busy_until = std::max(from.busy_until, out_free);
    events_.push({.when = leaves + link.latency_seconds,
                  .order = ++events_made_,
                  .rank = r,
                  .message = true,
                  .peer = peer,
                  .duration = duration});
  }

  // The first byte of a message is at the receiver, which takes in one message
  // after another.
  void Land(const Event& event) {
    const int host = topology_.host[event.peer];
    const bool inside = topology_.host[event.rank] == host;
    State& to = states_[event.peer];
    double& in_free = inside ? to.in_free : lines_[host].in_free;
    in_free = std::max(event.when, in_free) + event.duration;
    Arrivals& arrivals = From(event.rank, event.peer);
    arrivals.times.push_back(in_free);
    if (!to.waiting || arrivals.here() > arrivals.wanted) return;
    --to.missing;
    TryFinish(event.peer);
  }

  Arrivals& From(std::size_t sender, std::size_t receiver) {
    return arrivals_[sender * ranks_.size() + receiver];
  }

  // Counts the messages that the round of rank r waits for.
  void Expect(std::size_t r) {
    State& state = states_[r];
    for (const Action& action : Round(r)) {
      if (action.kind != Action::Kind::kRecv || action.dst.count == 0) continue;
      const auto sender = static_cast<std::size_t>(action.peer);
      if (From(sender, r).wanted++ == 0) state.senders.push_back(sender);
    }
    state.missing = 0;
    for (const std::size_t sender : state.senders) {
      const Arrivals& arrivals = From(sender, r);
      state.missing +=
          arrivals.wanted - std::min(arrivals.wanted, arrivals.here());
    }
  }

  // Ends the round of rank r if the arrival times of all messages that it waits
  // for are known.
  void TryFinish(std::size_t r) {
    if (states_[r].missing > 0) return;
    double end = states_[r].busy_until;
    for (const std::size_t sender : states_[r].senders) {
      Arrivals& arrivals = From(sender, r);
      for (; arrivals.wanted > 0; --arrivals.wanted) {
        end = std::max(end, arrivals.times[arrivals.taken++]);
      }
    }
    states_[r].senders.clear();
    for (const Action& action : Round(r)) end += LocalSeconds(r, action);
    EndRound(end, r);
  }

  void EndRound(double end, std::size_t r) {
    states_[r].waiting = false;
    ++states_[r].round;
    BeginAt(end, r);
  }

  // A pull reads its slice from the buffers of all ranks of the host, and a
  // push writes it to all of them.
  double LocalSeconds(std::size_t r, const Action& action) const {
    const double bytes = static_cast<double>(action.dst.count) * element_bytes_;
    const double memory = model_.inside.reduce_seconds_per_byte;
    switch (action.kind) {
      case Action::Kind::kReduce:
        return bytes * Cost(r);
      case Action::Kind::kReduceMany:
        return bytes * (action.sources + 1) * Cost(r);
      case Action::Kind::kPull:
        return bytes * memory;
      case Action::Kind::kPullReduce:
        return bytes * memory * states_[r].sharing * (action.push ? 2 : 1);
      case Action::Kind::kPush:
        return bytes * memory * states_[r].sharing;
      default:
        return 0;
    }
  }

  // Seconds per byte of reducing what arrived in messages. Memory does not care
  // where a message came from, so a rank that shares its host is charged the
  // rate inside a host.
  double Cost(std::size_t r) const {
    return states_[r].sharing > 1 ? model_.inside.reduce_seconds_per_byte
                                  : model_.across.reduce_seconds_per_byte;
  }

  // The last rank of the host to arrive lets all of them go on.
  void ArriveAtSync(double now, std::size_t r) {
    ++states_[r].syncs;
    double last = now;
    for (std::size_t q = 0; q < ranks_.size(); ++q) {
      if (topology_.host[q] != topology_.host[r]) continue;
      if (states_[q].syncs < states_[r].syncs) return;
      last = std::max(last, states_[q].busy_until);
    }
    for (std::size_t q = 0; q < ranks_.size(); ++q) {
      if (topology_.host[q] != topology_.host[r]) continue;
      EndRound(last + SyncSeconds(model_.inside), q);
    }
  }

  const std::vector<Schedule>& ranks_;
  Topology topology_;
  const double element_bytes_;
  const CostModel& model_;
  std::vector<State> states_;
  std::map<int, Line> lines_;
  std::vector<Arrivals> arrivals_;  // By sender, then by receiver.
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::size_t events_made_ = 0;
};

}  // namespace

double PriceSchedules(const std::vector<Schedule>& ranks,
                      const Topology& topology, std::size_t element_bytes,
                      const CostModel& model) {
  return Player(ranks, topology, element_bytes, model).Play();
}

}  // namespace gradientflow
