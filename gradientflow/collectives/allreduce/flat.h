#pragma once

#include <map>

#include "gradientflow/collectives/allreduce/algorithm.h"
#include "gradientflow/collectives/cost_model.h"
#include "gradientflow/collectives/schedule.h"

// The cost of allreduce algorithms that ignore which host a rank is on
// ("flat"), on networks where ranks of one host share the host's line.
namespace gradientflow {

// Seconds that an allreduce of `bytes` takes among `size` ranks on equal,
// separate links.
using AllreduceFormula = double (*)(int size, double bytes,
                                    const LinkModel& link);

// The latency and the sender's own work of `rounds` messages, one after
// another.
double MessageSeconds(double rounds, const LinkModel& link);

// Adds up what each host sends to other hosts, to find the busiest line.
class HostLine {
 public:
  // Borrows `topology`, which names the host of each rank.
  explicit HostLine(const Topology& topology) : host_(topology.host) {}

  // Rank `from` sends rank `to` `buffers` times the bytes of the whole buffer.
  // Messages within a host do not count.
  void Add(int from, int to, double buffers) {
    if (HostAt(from) != HostAt(to)) sent_[HostAt(from)] += buffers;
  }
  // Every rank sends `buffers` times the buffer to every other rank.
  void AddAllPairs(double buffers);

  // What the busiest host sends, in bytes per byte of the buffer.
  double Busiest() const;

 private:
  int HostAt(int r) const { return host_[static_cast<std::size_t>(r)]; }

  const std::vector<int>& host_;
  std::map<int, double> sent_;
};

// Predicted seconds. If all ranks are on one host, this is `formula` over the
// link inside a host. Otherwise it is the larger of `formula` over `across` and
// the time that the busiest host's line needs to carry `line`.
double FlatSeconds(const AllreduceQuestion& question, AllreduceFormula formula,
                   const HostLine& line, const LinkModel& across);

inline double BytesOf(const AllreduceQuestion& question) {
  return static_cast<double>(question.count) *
         static_cast<double>(question.wire_element_bytes);
}

}  // namespace gradientflow
