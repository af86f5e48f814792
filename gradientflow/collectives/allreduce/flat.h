#pragma once

#include <map>

#include "gradientflow/collectives/allreduce/algorithm.h"
#include "gradientflow/collectives/cost_model.h"
#include "gradientflow/collectives/schedule.h"

// What allreduces that take no notice of hosts cost where there are some.
namespace gradientflow {

// Seconds of an allreduce of `bytes` by `size` ranks on equal, separate links.
using AllreduceFormula = double (*)(int size, double bytes,
                                    const LinkModel& link);

// Latency and the sender's own work of `rounds` messages one after another.
double MessageSeconds(double rounds, const LinkModel& link);

// Counts what leaves the hosts, to find the busiest host's line.
class HostLine {
 public:
  // Borrows `topology`, which names the host of each rank.
  explicit HostLine(const Topology& topology) : host_(topology.host) {}

  // `from` sends `to` so many times the bytes of the buffer.
  void Add(int from, int to, double buffers) {
    if (HostAt(from) != HostAt(to)) sent_[HostAt(from)] += buffers;
  }
  // Every rank sends to every other.
  void AddAllPairs(double buffers);

  // What the busiest host sends, in bytes per byte of the buffer.
  double Busiest() const;

 private:
  int HostAt(int r) const { return host_[static_cast<std::size_t>(r)]; }

  const std::vector<int>& host_;
  std::map<int, double> sent_;
};

// `formula` over the link inside if there is one host. Else over `across`, or
// what the busiest host's line needs to carry `line`, whichever takes longer.
double FlatSeconds(const AllreduceQuestion& question, AllreduceFormula formula,
                   const HostLine& line, const LinkModel& across);

inline double BytesOf(const AllreduceQuestion& question) {
  return static_cast<double>(question.count) *
         static_cast<double>(question.wire_element_bytes);
}

}  // namespace gradientflow
