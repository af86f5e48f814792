#include "gradientflow/collectives/cost_model.h"

#include <algorithm>
#include <bit>
#include <map>

namespace gradientflow {
namespace {

// For each host, how many of its ranks send to another host.
class Crossings {
 public:
  explicit Crossings(const std::vector<int>& host, int hosts)
      : host_(host), sent_(static_cast<std::size_t>(hosts)) {}

  void Add(int from, int to) {
    const int host = host_[static_cast<std::size_t>(from)];
    if (host == host_[static_cast<std::size_t>(to)]) return;
    most_ = std::max(most_, ++sent_[static_cast<std::size_t>(host)]);
  }
  double most() const { return most_; }

 private:
  const std::vector<int>& host_;
  std::vector<double> sent_;
  double most_ = 0;
};

// Numbers hosts from 0 on.
std::vector<int> Numbered(const std::vector<int>& names) {
  std::map<int, int> numbers;
  std::vector<int> hosts;
  for (const int name : names) {
    hosts.push_back(
        numbers.emplace(name, static_cast<int>(numbers.size())).first->second);
  }
  return hosts;
}

}  // namespace

HostMap::HostMap(int size)
    : size_(size),
      core_(static_cast<int>(std::bit_floor(static_cast<unsigned>(size)))),
      hosts_(size),
      fold_(size > core_ ? 1 : 0),
      all_pairs_(size - 1) {
  for (int hop = 1; hop < size; hop *= 2) shift_.push_back(1);
  SetRoot(0, {});
  for (int bit = 1; bit < core_; bit *= 2) swap_.push_back(1);
}

HostMap::HostMap(int size, const Topology& topology) : HostMap(size) {
  if (topology.host.empty()) return;
  const std::vector<int> host = Numbered(topology.host);
  hosts_ = 1 + *std::max_element(host.begin(), host.end());
  std::vector<int> ranks(static_cast<std::size_t>(hosts_));
  for (const int h : host) ++ranks[static_cast<std::size_t>(h)];
  const auto [least, most] = std::minmax_element(ranks.begin(), ranks.end());
  smallest_ = *least;
  largest_ = *most;
  all_pairs_ = 0;
  for (const double g : ranks) {
    all_pairs_ = std::max(all_pairs_, g * (size - g));
  }
  for (int k = 0; k < doublings(); ++k) {
    Crossings shift(host, hosts_);
    for (int r = 0; r < size; ++r) shift.Add(r, (r + (1 << k)) % size);
    shift_[static_cast<std::size_t>(k)] = shift.most();
  }
  for (int bit = 1, k = 0; bit < core_; bit *= 2, ++k) {
    Crossings swap(host, hosts_);
    for (int r = 0; r < core_; ++r) swap.Add(r, r ^ bit);
    swap_[static_cast<std::size_t>(k)] = swap.most();
  }
  Crossings fold(host, hosts_);
  for (int r = core_; r < size; ++r) {
    fold.Add(r, r - core_);
    fold.Add(r - core_, r);
  }
  fold_ = fold.most();
  SetRoot(0, topology);
}

void HostMap::SetRoot(int root, const Topology& topology) {
  branch_.clear();
  for (int length = 1; length < size_; length *= 2) {
    double crossing = 0;
    double branches = 0;
    for (int place = 0; place + length < size_; place += 2 * length) {
      const auto host = [&](int at) {
        const int rank = (root + at) % size_;
        return topology.host.empty()
                   ? rank
                   : topology.host[static_cast<std::size_t>(rank)];
      };
      ++branches;
      crossing += host(place) != host(place + length) ? 1 : 0;
    }
    branch_.push_back(crossing / branches);
  }
}

LinkModel UnderLoad(const LinkModel& alone, const LinkModel& together,
                    double share) {
  const auto slower = [&](double LinkModel::*cost) {
    return std::max(alone.*cost, share * (together.*cost));
  };
  return {
      .latency_seconds =
          std::max(alone.latency_seconds, together.latency_seconds) +
          (1 - share) * together.waiting_seconds,
      .seconds_per_byte = slower(&LinkModel::seconds_per_byte),
      .reduce_seconds_per_byte = slower(&LinkModel::reduce_seconds_per_byte),
      .message_seconds = slower(&LinkModel::message_seconds),
      .long_seconds_per_byte = slower(&LinkModel::long_seconds_per_byte),
      .waiting_seconds = share * together.waiting_seconds};
}

void Price::Add(double rounds, const Traffic& traffic, const LinkModel& link) {
  const double short_bytes =
      std::min(traffic.bytes, traffic.messages * kShortMessageBytes);
  // The part of the bytes that come late in their message.
  const double late = traffic.bytes > 0 ? 1 - short_bytes / traffic.bytes : 0.0;
  const double work =
      traffic.messages * link.message_seconds +
      std::max(traffic.bytes, traffic.line_bytes) *
          (link.seconds_per_byte + late * link.long_seconds_per_byte) +
      traffic.reduced_bytes * link.reduce_seconds_per_byte;
  elapsed += rounds * (link.latency_seconds + work);
  busy += rounds * work;
  ++terms;
}

void Price::AddSyncs(double syncs, double moved_bytes,
                     const LinkModel& inside) {
  const double work = moved_bytes * inside.reduce_seconds_per_byte;
  elapsed += syncs * SyncSeconds(inside) + work;
  busy += work;
  ++terms;
}

double PipelineSeconds(const Price& segment, double segments, double window) {
  if (segments <= 1) return segment.elapsed;
  return segment.elapsed +
         (segments - 1) * std::max(segment.busy, segment.elapsed / window);
}

CostModel TypicalCostModel(bool hosts_share_memory) {
  // The values inside a host are those that benchmarks/collectives measures on
  // two cores of a current server. Sums read what was just received, from the
  // caches, whatever it came by.
  const LinkModel memory = {.latency_seconds = 2e-6,
                            .seconds_per_byte = 1e-10,
                            .reduce_seconds_per_byte = 4e-11,
                            .message_seconds = 5e-7};
  const LinkModel loopback = {.latency_seconds = 12e-6,
                              .seconds_per_byte = 3e-10,
                              .reduce_seconds_per_byte = 4e-11,
                              .message_seconds = 4e-6};
  return {.inside = hosts_share_memory ? memory : loopback,
          .across = {.latency_seconds = 20e-6,
                     .seconds_per_byte = 8e-10,
                     .reduce_seconds_per_byte = 4e-11,
                     .message_seconds = 2e-6}};
}

}  // namespace gradientflow
