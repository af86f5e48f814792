// What choosing an algorithm costs for a size that is new, among thousands of
// ranks on hosts of eight: `choose`. The map of the hosts is made once per
// group.
#include <benchmark/benchmark.h>

#include "gradientflow/collectives/choose.h"

namespace gradientflow::benchmarks {
namespace {

Topology HostsOfEight(int ranks) {
  Topology topology;
  for (int r = 0; r < ranks; ++r) topology.host.push_back(r / 8);
  return topology;
}

void ChooseForANewSize(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  CallQuestion question;
  question.hosts = HostMap(ranks, HostsOfEight(ranks));
  for (auto _ : state) {
    ++question.count;
    for (int kind = 0; kind < kCollectiveKinds; ++kind) {
      benchmark::DoNotOptimize(
          ChooseAlgorithm(static_cast<CollectiveKind>(kind), question));
    }
  }
  state.SetItemsProcessed(state.iterations() * kCollectiveKinds);
}
BENCHMARK(ChooseForANewSize)->Arg(64)->Arg(4096);

void MapHosts(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const Topology topology = HostsOfEight(ranks);
  for (auto _ : state) benchmark::DoNotOptimize(HostMap(ranks, topology));
}
BENCHMARK(MapHosts)->Arg(64)->Arg(4096);

}  // namespace
}  // namespace gradientflow::benchmarks

BENCHMARK_MAIN();
