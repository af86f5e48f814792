#include "gradientflow/probe/pair.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <span>

#include "gradientflow/base/quantile.h"

// The leader sends an Order before each measurement, and the follower does its
// part of it. In a flow every rank that receives takes the time of each message
// as it arrives: that of the sender would include what buffers hold.
namespace gradientflow {
namespace {

enum class Task : std::uint32_t { kEnd, kPingPong, kBurst, kFlow };

struct Order {
  Task task = Task::kEnd;
  Direction direction = Direction::kFromLeader;
  std::uint32_t in_flight = 1;
  std::uint32_t messages = 0;
  std::uint64_t message_bytes = 0;
};

constexpr std::uint32_t kOrders = 1;
constexpr std::uint32_t kPings = 2;
constexpr std::uint32_t kPayload = 3;
constexpr std::uint32_t kReports = 4;

constexpr std::uint32_t kPingsOfTrial = 10;
constexpr std::uint32_t kBurst = 8;
constexpr std::uint32_t kMostPings = 20000;
constexpr std::uint32_t kMostMessages = 20000;
// Messages at the beginning of a flow that do not count: buffers of the network
// fill, and connections find their speed.
constexpr double kWarmUpSeconds = 0.05;
constexpr std::uint32_t kWarmUp = 3;
// The part of a flow's time that goes into a second look at how fast it is.
constexpr double kShareOfTrial = 0.1;
constexpr std::size_t kWindows = 20;
constexpr std::size_t kSmallBytes = 8;

// One rank's part of a measurement.
class Part {
 public:
  Part(Communicator& comm, int peer, const Clock& clock)
      : comm_(comm), peer_(peer), clock_(clock) {}

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

  // Appends to `arrivals` when each message came here.
  Status Run(const Order& order, bool leads, std::vector<double>* arrivals) {
    const bool both = order.direction == Direction::kBoth;
    const bool sends =
        both || leads == (order.direction == Direction::kFromLeader);
    const auto bytes = static_cast<std::size_t>(order.message_bytes);
    if (!both) {
      return Transfer(sends, bytes, order.messages, order.in_flight, arrivals);
    }
    return Exchange(bytes, order.messages, order.in_flight, arrivals);
  }

 private:
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
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
};

// Messages per second: the slope of the line that fits their arrivals best.
// Messages of several connections arrive in groups, which moves the ends of a
// window far more than its line.
double SlopeOf(std::span<const double> arrivals) {
  const auto n = static_cast<double>(arrivals.size());
  double middle = 0;
  for (const double at : arrivals) middle += at / n;
  double along = 0;
  double squares = 0;
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    const double off = arrivals[i] - middle;
    along += off * (static_cast<double>(i) - (n - 1) / 2);
    squares += off * off;
  }
  // All of them may have come in the same instant of the clock.
  return along / std::max(squares, 1e-18);
}

std::uint32_t CountFor(double seconds, double each, std::uint32_t least,
                       std::uint32_t most) {
  const double count = seconds / std::max(each, 1e-9);
  return static_cast<std::uint32_t>(
      std::clamp(count, static_cast<double>(least), static_cast<double>(most)));
}

}  // namespace

FlowRate RateOf(std::span<const double> arrivals, std::size_t in_flight,
                std::size_t message_bytes) {
  const auto bytes = static_cast<double>(message_bytes);
  const std::size_t windows =
      std::clamp<std::size_t>(arrivals.size() / (4 * in_flight), 1, kWindows);
  std::vector<double> rates;
  for (std::size_t w = 0; w < windows; ++w) {
    const std::size_t from = arrivals.size() * w / windows;
    const std::size_t to = arrivals.size() * (w + 1) / windows;
    rates.push_back(bytes * SlopeOf(arrivals.subspan(from, to - from)));
  }
  return {bytes * SlopeOf(arrivals), Quantile(rates, 0.5),
          Quantile(rates, 0.01)};
}

Result<MessageTimes> PairLeader::Latency(double seconds) {
  Part part(comm_, peer_, clock_);
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
  Part part(comm_, peer_, clock_);
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
  Part part(comm_, peer_, clock_);
  std::vector<double> times;
  std::uint64_t messages = 0;
  const Clock::Time end = clock_.Now() + FromSeconds(seconds);
  while (clock_.Now() < end) {
    const Order order{.task = Task::kBurst, .messages = kLeastMessages};
    GF_RETURN_IF_ERROR(comm_.Send(peer_, kOrders, &order, sizeof(order)));
    times.clear();
    GF_RETURN_IF_ERROR(part.Bursts(order.messages, &times));
    messages += std::uint64_t{order.messages} * kBurst;
  }
  return messages;
}

Result<FlowRate> PairLeader::Rate(const Flow& flow) {
  Part part(comm_, peer_, clock_);
  Order order{.task = Task::kFlow,
              .direction = flow.direction,
              .in_flight = static_cast<std::uint32_t>(flow.in_flight),
              .messages = kWarmUp + 2,
              .message_bytes = flow.message_bytes};
  std::uint32_t warm_up = kWarmUp;
  FlowRate rate;
  // Each pass tells how many messages the next one needs.
  for (const double share : {kShareOfTrial, 1.0, 0.0}) {
    const Clock::Time begin = clock_.Now();
    GF_RETURN_IF_ERROR(comm_.Send(peer_, kOrders, &order, sizeof(order)));
    std::vector<double> here;
    GF_RETURN_IF_ERROR(part.Run(order, /*leads=*/true, &here));
    // The follower sends its arrivals, if any.
    std::vector<double> there(order.messages);
    if (flow.direction != Direction::kToLeader) {
      GF_RETURN_IF_ERROR(comm_.Recv(peer_, kReports, there.data(),
                                    there.size() * sizeof(double)));
    }
    // With the time of the first message: a few that arrive together say
    // nothing of those that follow.
    const double each = Seconds(clock_.Now() - begin) / order.messages;
    const auto rate_of = [&](std::span<const double> arrivals) {
      return RateOf(arrivals.subspan(warm_up - 1), order.in_flight,
                    order.message_bytes);
    };
    rate = rate_of(here.empty() ? there : here);
    if (flow.direction == Direction::kBoth) {
      const FlowRate other = rate_of(there);
      rate = {(rate.mean + other.mean) / 2, (rate.p50 + other.p50) / 2,
              (rate.p99 + other.p99) / 2};
    }
    warm_up =
        CountFor(share * kWarmUpSeconds, each, kWarmUp, kMostMessages / 10);
    order.messages = warm_up + CountFor(share * flow.seconds, each,
                                        kLeastMessages, kMostMessages);
  }
  return rate;
}

Status PairLeader::End() {
  const Order order;
  return comm_.Send(peer_, kOrders, &order, sizeof(order));
}

Status FollowPair(Communicator& comm, int leader, const Clock& clock) {
  Part part(comm, leader, clock);
  while (true) {
    Order order;
    GF_RETURN_IF_ERROR(comm.Recv(leader, kOrders, &order, sizeof(order)));
    std::vector<double> arrivals;
    switch (order.task) {
      case Task::kEnd:
        return Status();
      case Task::kPingPong:
        GF_RETURN_IF_ERROR(part.PingPong(order.messages, false, &arrivals));
        break;
      case Task::kBurst:
        GF_RETURN_IF_ERROR(part.Bursts(order.messages, &arrivals));
        break;
      case Task::kFlow:
        GF_RETURN_IF_ERROR(part.Run(order, false, &arrivals));
        if (arrivals.empty()) break;
        GF_RETURN_IF_ERROR(comm.Send(leader, kReports, arrivals.data(),
                                     arrivals.size() * sizeof(double)));
        break;
    }
  }
}

}  // namespace gradientflow
