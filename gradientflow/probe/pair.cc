#include "gradientflow/probe/pair.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <span>

#include "gradientflow/base/quantile.h"
#include "gradientflow/communicator/core.h"

// The leader sends an Order before each measurement, and the follower does its
// part of it. A flow is a number of trains. Before each of them both ranks wait
// for each other with nothing under way, and every rank that receives takes the
// time from then until all has arrived. The sender's time would include what
// buffers hold. If trains overlapped, messages under way on several connections
// would count for the wrong one, by a large part of a train on a slow line.
namespace gradientflow {
namespace {

enum class Task : std::uint32_t { kEnd, kPingPong, kBurst, kFlow };

struct Order {
  Task task = Task::kEnd;
  Direction direction = Direction::kFromLeader;
  std::uint32_t in_flight = 1;
  std::uint32_t messages = 0;  // Of each train,
  std::uint32_t warm_up = 0;   // and of the one before them.
  std::uint32_t trains = 0;
  std::uint32_t passes = 0;  // For each message that arrives.
  std::uint64_t message_bytes = 0;
};

constexpr std::uint32_t kOrders = 1;
constexpr std::uint32_t kPings = 2;
constexpr std::uint32_t kPayload = 3;
constexpr std::uint32_t kReports = 4;
constexpr std::uint32_t kDrained = 5;

constexpr std::uint32_t kPingsOfTrial = 10;
constexpr std::uint32_t kBurst = 8;
constexpr std::uint32_t kMostPings = 20000;
constexpr std::uint32_t kMostMessages = 20000;
// What comes first in a flow and does not count: buffers of the network fill,
// token buckets become empty, and connections find their speed.
constexpr double kWarmUpSeconds = 0.05;
constexpr std::uint32_t kWarmUp = 3;
// The part of a flow's time that goes into a second look at how fast it is.
constexpr double kShareOfTrial = 0.1;
// Trains of a flow. With three the one in the middle is right if another one
// lost packets and waited for them.
constexpr std::uint32_t kLeastTrains = 3;
constexpr std::uint32_t kMostTrains = 20;
constexpr std::uint32_t kLeastOfTrain =
    PairLeader::kLeastMessages / kLeastTrains;
static_assert(PairLeader::kLeastMessages % kLeastTrains == 0);
// Passes keep the line from being full, so trains beside them need not be long;
// with many of them, the one in the middle is right if ranks that share cores
// waited for each other in some.
constexpr double kSecondsOfDrivenTrain = 0.02;
constexpr std::size_t kSmallBytes = 8;
// So many times as long as a message takes the thread that drives passes over
// memory for each, so that it never waits for the wire.
constexpr double kBusyTimes = 2;

// One rank's part of a measurement.
class Part {
 public:
  Part(Communicator& comm, int peer, const Clock& clock, const Pass& pass)
      : comm_(comm), peer_(peer), clock_(clock), pass_(pass) {}

  Status PingPong(std::uint32_t rounds, bool leads,
                  std::vector<double>* seconds) {
    std::array<std::byte, kSmallBytes> ball{};
    for (std::uint32_t i = 0; i < rounds; ++i) {
      const Clock::Time begin = clock_.Now();
      if (leads) {
        GF_RETURN_IF_ERROR(comm_.Send(peer_, kPings, ball.data(), ball.size()));
      }
      GF_RETURN_IF_ERROR(comm_.Recv(peer_, kPings, ball.data(), ball.size()));
      if (!leads) {
        GF_RETURN_IF_ERROR(comm_.Send(peer_, kPings, ball.data(), ball.size()));
      } else {
        seconds->push_back(Seconds(clock_.Now() - begin) / 2);
      }
    }
    return Status();
  }

  // Rounds of several small messages, in both directions.
  Status Bursts(std::uint32_t rounds, std::vector<double>* seconds) {
    std::vector<double> arrivals;
    for (std::uint32_t i = 0; i < rounds; ++i) {
      const Clock::Time begin = clock_.Now();
      arrivals.clear();
      GF_RETURN_IF_ERROR(Exchange(kSmallBytes, kBurst, kBurst, &arrivals));
      seconds->push_back(Seconds(clock_.Now() - begin));
    }
    return Status();
  }

  // Appends to `seconds` how long each train took to arrive here, and to
  // `passes`, if messages come here, how much of that its passes took. The
  // first train is the warm-up.
  Status Run(const Order& order, bool leads, std::vector<double>* seconds,
             std::vector<double>* passes) {
    const bool both = order.direction == Direction::kBoth;
    const bool sends =
        both || leads == (order.direction == Direction::kFromLeader);
    const auto bytes = static_cast<std::size_t>(order.message_bytes);
    std::vector<double> arrivals;
    passes_ = order.passes;
    for (std::uint32_t train = 0; train <= order.trains; ++train) {
      GF_RETURN_IF_ERROR(Drain());
      pass_seconds_ = 0;
      const std::uint32_t messages =
          train == 0 ? order.warm_up : order.messages;
      arrivals.clear();
      const double begin = Seconds(clock_.Now());
      GF_RETURN_IF_ERROR(
          both ? Exchange(bytes, messages, order.in_flight, &arrivals)
               : Transfer(sends, bytes, messages, order.in_flight, &arrivals));
      if (arrivals.empty()) continue;
      seconds->push_back(arrivals.back() - begin);
      passes->push_back(pass_seconds_);
    }
    passes_ = 0;
    return Status();
  }

 private:
  // While the baton is held, no other thread serves the wire, but for messages
  // that are long enough for io threads.
  void MakePasses() {
    comm_.core().progress().Do([this] {
      const Clock::Time begin = clock_.Now();
      for (std::uint32_t i = 0; i < passes_; ++i) pass_();
      pass_seconds_ += Seconds(clock_.Now() - begin);
    });
  }

  // Returns when both ranks have called it, with nothing under way.
  Status Drain() {
    std::byte out{};
    std::byte in{};
    const Communicator::Message message{.peer = peer_, .tag = kDrained};
    const auto coming = comm_.StartRecv(message, &in, sizeof(in));
    if (!coming.ok()) return coming.status();
    const auto going = comm_.StartSend(message, &out, sizeof(out));
    if (!going.ok()) return going.status();
    GF_RETURN_IF_ERROR(comm_.Wait(coming.value()));
    return comm_.Wait(going.value());
  }

  Result<std::uint64_t> Start(bool sends, std::size_t slot, std::size_t bytes) {
    std::vector<std::byte>& memory = sends ? out_ : in_;
    std::byte* const at = memory.data() + slot * bytes;
    const Communicator::Message message{.peer = peer_, .tag = kPayload};
    return sends ? comm_.StartSend(message, at, bytes)
                 : comm_.StartRecv(message, at, bytes);
  }

  Status Transfer(bool sends, std::size_t bytes, std::uint32_t messages,
                  std::uint32_t in_flight, std::vector<double>* arrivals) {
    Make(bytes * in_flight);
    std::deque<std::uint64_t> tickets;
    for (std::uint32_t next = 0, ended = 0; ended < messages; ++ended) {
      for (; next < messages && next < ended + in_flight; ++next) {
        const auto ticket = Start(sends, next % in_flight, bytes);
        if (!ticket.ok()) return ticket.status();
        tickets.push_back(ticket.value());
      }
      GF_RETURN_IF_ERROR(comm_.Wait(tickets.front()));
      tickets.pop_front();
      if (!sends && arrivals != nullptr) {
        arrivals->push_back(Seconds(clock_.Now()));
      }
    }
    return Status();
  }

  Status Exchange(std::size_t bytes, std::uint32_t messages,
                  std::uint32_t in_flight, std::vector<double>* arrivals) {
    Make(bytes * in_flight);
    std::deque<std::array<std::uint64_t, 2>> tickets;
    for (std::uint32_t next = 0, ended = 0; ended < messages; ++ended) {
      for (; next < messages && next < ended + in_flight; ++next) {
        const auto in = Start(false, next % in_flight, bytes);
        if (!in.ok()) return in.status();
        const auto out = Start(true, next % in_flight, bytes);
        if (!out.ok()) return out.status();
        tickets.push_back({in.value(), out.value()});
      }
      GF_RETURN_IF_ERROR(comm_.Wait(tickets.front()[0]));
      arrivals->push_back(Seconds(clock_.Now()));
      // Those after the last one would not count.
      if (passes_ > 0 && ended + 1 < messages) MakePasses();
      GF_RETURN_IF_ERROR(comm_.Wait(tickets.front()[1]));
      tickets.pop_front();
    }
    return Status();
  }

  void Make(std::size_t bytes) {
    out_.resize(std::max(out_.size(), bytes));
    in_.resize(out_.size());
  }

  Communicator& comm_;
  const int peer_;
  const Clock& clock_;
  const Pass& pass_;
  std::uint32_t passes_ = 0;
  double pass_seconds_ = 0;  // Of a train.
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
};

std::uint32_t CountFor(double seconds, double each, std::uint32_t least,
                       std::uint32_t most) {
  const double count = seconds / std::max(each, 1e-9);
  return static_cast<std::uint32_t>(
      std::clamp(count, static_cast<double>(least), static_cast<double>(most)));
}

}  // namespace

FlowRate RateOf(std::span<const double> seconds, double train_bytes) {
  // They may have come in the same instant of the clock.
  const auto rate = [&](double took) {
    return train_bytes / std::max(took, 1e-9);
  };
  double sum = 0;
  for (const double took : seconds) sum += took;
  const std::vector<double> all(seconds.begin(), seconds.end());
  return {rate(sum / static_cast<double>(all.size())), rate(Quantile(all, 0.5)),
          rate(Quantile(all, 0.99))};
}

Trains TrainsOf(double seconds, double train_seconds, double each) {
  const std::uint32_t messages =
      CountFor(seconds, each, PairLeader::kLeastMessages, kMostMessages);
  const std::uint32_t trains =
      std::min(CountFor(seconds, train_seconds, kLeastTrains, kMostTrains),
               messages / kLeastOfTrain);
  return {trains, messages / trains};
}

namespace {

struct LedFlow {
  FlowRate rate;
  // Both are seconds per message, the median of the trains, and only of a flow
  // in both directions. In each train the rank whose passes took longer counts,
  // since each rank waits for the other.
  double pass_seconds = 0;
  double other_seconds = 0;    // The rest of the train.
  double message_seconds = 0;  // With all that the ranks do between trains.
};

// The leader's part of a flow.
Result<LedFlow> LeadFlow(Communicator& comm, int peer, const Clock& clock,
                         const Pass& pass, const Order& order) {
  LedFlow led;
  Part part(comm, peer, clock, pass);
  const Clock::Time begin = clock.Now();
  GF_RETURN_IF_ERROR(comm.Send(peer, kOrders, &order, sizeof(order)));
  std::vector<double> here;
  std::vector<double> passes;
  GF_RETURN_IF_ERROR(part.Run(order, /*leads=*/true, &here, &passes));
  // The follower sends its times, if any, and those of its passes.
  const std::size_t trains = 1 + order.trains;
  std::vector<double> there(2 * trains);
  if (order.direction != Direction::kToLeader) {
    GF_RETURN_IF_ERROR(
        comm.Recv(peer, kReports, there.data(), there.size() * sizeof(double)));
  }
  led.message_seconds = Seconds(clock.Now() - begin) /
                        (order.warm_up + order.trains * order.messages);
  const auto rate_of = [&](const std::vector<double>& seconds) {
    return RateOf(std::span(seconds).subspan(1, order.trains),
                  static_cast<double>(order.message_bytes) * order.messages);
  };
  led.rate = rate_of(here.empty() ? there : here);
  if (order.direction != Direction::kBoth) return led;
  const FlowRate own = led.rate;
  const FlowRate other = rate_of(there);
  led.rate = {(own.mean + other.mean) / 2, (own.p50 + other.p50) / 2,
              (own.p99 + other.p99) / 2};
  std::vector<double> longer;
  std::vector<double> rest;
  for (std::size_t i = 1; i < trains; ++i) {
    longer.push_back(std::max(passes[i], there[trains + i]));
    rest.push_back(std::max(here[i], there[i]) - longer.back());
  }
  led.pass_seconds = Quantile(longer, 0.5) / order.messages;
  led.other_seconds = std::max(Quantile(rest, 0.5), 0.0) / order.messages;
  return led;
}

// Looks at the flow once or twice to see how many messages it is to have.
Result<LedFlow> LeadAll(Communicator& comm, int peer, const Clock& clock,
                        const Pass& pass, const Flow& flow) {
  Order order{.task = Task::kFlow,
              .direction = flow.direction,
              .in_flight = static_cast<std::uint32_t>(flow.in_flight),
              .messages = 2,
              .warm_up = kWarmUp,
              .trains = 1,
              .passes = static_cast<std::uint32_t>(flow.passes),
              .message_bytes = flow.message_bytes};
  const auto plan = [&](double share, double each) {
    const Trains trains =
        TrainsOf(share * flow.seconds, flow.train_seconds, each);
    order.trains = trains.count;
    order.messages = trains.messages;
    order.warm_up =
        CountFor(share * kWarmUpSeconds, each, kWarmUp, kMostMessages / 10);
    return trains.count * trains.messages > PairLeader::kLeastMessages;
  };
  Result<LedFlow> led = LeadFlow(comm, peer, clock, pass, order);
  if (led.ok() && plan(kShareOfTrial, led.value().message_seconds)) {
    led = LeadFlow(comm, peer, clock, pass, order);
  }
  if (!led.ok()) return led.status();
  plan(1, led.value().message_seconds);
  return LeadFlow(comm, peer, clock, pass, order);
}

}  // namespace

Result<MessageTimes> PairLeader::Latency(double seconds) {
  Part part(comm_, peer_, clock_, pass_);
  std::vector<double> times;
  std::uint32_t rounds = kPingsOfTrial;
  for (int pass = 0; pass < 2; ++pass) {
    times.clear();
    Order order{.task = Task::kPingPong, .messages = rounds};
    GF_RETURN_IF_ERROR(comm_.Send(peer_, kOrders, &order, sizeof(order)));
    GF_RETURN_IF_ERROR(part.PingPong(rounds, /*leads=*/true, &times));
    rounds =
        CountFor(seconds, 2 * Quantile(times, 0.5), kPingsOfTrial, kMostPings);
  }
  return MessageTimes{Quantile(times, 0.5), Quantile(times, 0.99)};
}

Result<MessageTimes> PairLeader::OwnWork(double seconds) {
  const Result<MessageTimes> one = Latency(seconds / 4);
  if (!one.ok()) return one.status();
  Part part(comm_, peer_, clock_, pass_);
  std::vector<double> times;
  std::uint32_t rounds = kLeastMessages;
  for (int pass = 0; pass < 2; ++pass) {
    times.clear();
    Order order{.task = Task::kBurst, .messages = rounds};
    GF_RETURN_IF_ERROR(comm_.Send(peer_, kOrders, &order, sizeof(order)));
    GF_RETURN_IF_ERROR(part.Bursts(rounds, &times));
    rounds =
        CountFor(seconds / 2, Quantile(times, 0.5), kLeastMessages, kMostPings);
  }
  // The first message of a round takes as long as one alone.
  const auto each = [&](double share) {
    const double more = Quantile(times, share) - one.value().p50;
    return std::max(more / (kBurst - 1), 0.0);
  };
  return MessageTimes{each(0.5), each(0.99)};
}

Result<std::uint64_t> PairLeader::Messages(double seconds) {
  Part part(comm_, peer_, clock_, pass_);
  std::vector<double> times;
  std::uint64_t messages = 0;
  const Clock::Time end = clock_.Now() + FromSeconds(seconds);
  do {
    const Order order{.task = Task::kBurst, .messages = kLeastMessages};
    GF_RETURN_IF_ERROR(comm_.Send(peer_, kOrders, &order, sizeof(order)));
    times.clear();
    GF_RETURN_IF_ERROR(part.Bursts(order.messages, &times));
    messages += std::uint64_t{order.messages} * kBurst;
  } while (clock_.Now() < end);
  return messages;
}

Result<FlowRate> PairLeader::Rate(const Flow& flow) {
  const Result<LedFlow> led = LeadAll(comm_, peer_, clock_, pass_, flow);
  if (!led.ok()) return led.status();
  return led.value().rate;
}

Result<double> PairLeader::DriverSecondsPerByte(std::size_t message_bytes,
                                                double seconds) {
  Flow flow{.message_bytes = message_bytes,
            .direction = Direction::kBoth,
            .seconds = seconds / 4,
            .train_seconds = kSecondsOfDrivenTrain};
  const auto lead = [&] { return LeadAll(comm_, peer_, clock_, pass_, flow); };
  const Result<LedFlow> alone = lead();
  if (!alone.ok()) return alone.status();
  flow.passes = 1;
  const Result<LedFlow> trial = lead();
  if (!trial.ok()) return trial.status();
  const auto bytes = static_cast<double>(message_bytes);
  const double busy = kBusyTimes * bytes / alone.value().rate.mean;
  flow.passes = static_cast<int>(
      std::ceil(busy / std::max(trial.value().pass_seconds, 1e-6)));
  flow.seconds = seconds;
  const Result<LedFlow> beside = lead();
  if (!beside.ok()) return beside.status();
  return beside.value().other_seconds / bytes;
}

Status PairLeader::End() {
  const Order order;
  return comm_.Send(peer_, kOrders, &order, sizeof(order));
}

Status FollowPair(Communicator& comm, int leader, const Clock& clock,
                  const Pass& pass) {
  Part part(comm, leader, clock, pass);
  while (true) {
    Order order;
    GF_RETURN_IF_ERROR(comm.Recv(leader, kOrders, &order, sizeof(order)));
    std::vector<double> seconds;
    std::vector<double> passes;
    switch (order.task) {
      case Task::kEnd:
        return Status();
      case Task::kPingPong:
        GF_RETURN_IF_ERROR(part.PingPong(order.messages, false, &seconds));
        break;
      case Task::kBurst:
        GF_RETURN_IF_ERROR(part.Bursts(order.messages, &seconds));
        break;
      case Task::kFlow:
        GF_RETURN_IF_ERROR(part.Run(order, false, &seconds, &passes));
        if (seconds.empty()) break;
        seconds.insert(seconds.end(), passes.begin(), passes.end());
        GF_RETURN_IF_ERROR(comm.Send(leader, kReports, seconds.data(),
                                     seconds.size() * sizeof(double)));
        break;
    }
  }
}

}  // namespace gradientflow
