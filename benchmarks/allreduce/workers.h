#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/allreduce/group.h"
#include "gradientflow/config/options.h"

// The groups that can be compared. All their ranks are processes of this
// machine.
namespace gradientflow::benchmarks {

struct GroupSettings {
  std::string folder;  // For sockets and rendezvous; exists.
  int ranks = 2;
  std::string fabric = "auto";
  std::size_t most_bytes = 0;  // Of a batch.
  bool plain = false;          // Buffers from the heap, not the session.
  std::string gloo_python;     // An interpreter that can import torch.
  std::string gloo_script;
  std::string openmpi_program;  // openmpi_peer.c, compiled.
};

// This library: one Session per rank.
Result<std::unique_ptr<Group>> StartOurs(const GroupSettings& settings);

// The bare loop: every rank sums its share of all ranks' buffers, which all
// have mapped, and stores the result to all of them.
Result<std::unique_ptr<Group>> StartBareShared(const GroupSettings& settings);

// The bare exchange: two processes send each other batch.bytes at once, from
// and to memory that stays in the caches. Nothing is reduced, and nothing
// beside the sockets moves a byte: what an allreduce of two ranks by messages
// has to do at the very least. How, nobody knows beforehand: it is done in all
// these ways, and the best of them is the bound.
struct ExchangeWay {
  int connections;
  std::size_t call_bytes;  // Of a send and of a receive, at most.
  bool spins;              // Rather than block where nothing moves.
};
inline constexpr std::size_t kCallSizes[] = {
    std::size_t{64} << 10, std::size_t{256} << 10, std::size_t{1} << 20};
inline constexpr int kConnectionCounts[] = {1, 2, 4};
inline constexpr int kMostConnections = 4;
inline constexpr int kExchangeWays = 18;
ExchangeWay WayOf(int index);  // REQUIRES 0 <= index < kExchangeWays.
std::string Describe(const ExchangeWay& way);
Result<std::unique_ptr<Group>> StartBareExchange(const GroupSettings& settings);

Result<std::unique_ptr<Group>> StartGloo(const GroupSettings& settings);
Result<std::unique_ptr<Group>> StartOpenMpi(const GroupSettings& settings);

}  // namespace gradientflow::benchmarks
