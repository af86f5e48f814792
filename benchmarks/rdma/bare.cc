#include "benchmarks/rdma/bare.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "transports/rdma/choose.h"
#include "transports/rdma/devices.h"
#include "transports/rdma/verbs_api.h"

namespace gradientflow::benchmarks {
namespace {

constexpr int kReceives = 64;
// As the library does it.
constexpr std::size_t kWithImmediate = 8192;

}  // namespace

Result<std::unique_ptr<BareRank>> BareRank::Open(const std::string& port,
                                                 int rank, int ranks,
                                                 std::size_t floats) {
  const auto verbs = LoadVerbs();
  if (!verbs.ok()) return verbs.status();
  const auto devices = ListRdmaDevices(*verbs.value());
  if (!devices.ok()) return devices.status();
  auto choice = ChooseRail(devices.value(), {"=" + port, {}, 0});
  if (!choice.ok()) return choice.status();
  std::unique_ptr<BareRank> bare(new BareRank(rank, ranks, floats));
  auto rail =
      Rail::Open({verbs.value(), std::move(choice).value(), ranks, 0, 4});
  if (!rail.ok()) return rail.status();
  bare->rail_ = std::move(rail).value();
  auto memory = CardMemory::Map(2 * floats * sizeof(float));
  if (!memory.ok()) return memory.status();
  bare->memory_ = std::move(memory).value();
  auto made =
      Registration::Make(*verbs.value(), bare->rail_->pd(),
                         {bare->memory_.data(), bare->memory_.bytes(), {}},
                         CardRights::kPeersMayWrite, "the pool");
  if (!made.ok()) return made.status();
  bare->registration_ = std::move(made).value();
  bare->pool_ = reinterpret_cast<float*>(bare->memory_.data());
  bare->slots_ = bare->pool_ + floats;
  bare->ends_ = std::vector<End>(static_cast<std::size_t>(ranks));
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == rank) continue;
    End& end = bare->ends_[static_cast<std::size_t>(peer)];
    end.notices = &bare->notices_;
    auto pair = QueuePair::Create(bare->rail_.get(), &end, kReceives);
    if (!pair.ok()) return pair.status();
    end.pair = std::move(pair).value();
  }
  return bare;
}

Status BareRank::Link(const std::vector<std::unique_ptr<BareRank>>& ranks) {
  for (const auto& a : ranks) {
    for (const auto& b : ranks) {
      if (a == b) continue;
      End& here = a->ends_[static_cast<std::size_t>(b->rank_)];
      const End& there = b->ends_[static_cast<std::size_t>(a->rank_)];
      const auto match =
          MatchGids(a->rail_->port().gids, b->rail_->port().gids);
      if (!match) {
        return Status(StatusCode::kUnavailable, "no address fits");
      }
      RdmaAddress address = there.pair->address();
      address.gid = b->rail_->port().gids[match->second];
      GF_RETURN_IF_ERROR(
          here.pair->Connect(a->rail_->port().gids[match->first], address));
      const std::uint32_t key = b->registration_.remote_key();
      here.pool = {reinterpret_cast<std::uintptr_t>(b->pool_), key};
      here.slots = {reinterpret_cast<std::uintptr_t>(b->slots_), key};
    }
  }
  return Status();
}

void BareRank::Poll() {
  if (!rail_->Poll()) ::sched_yield();
}

void BareRank::Put(int to, const float* from, std::size_t floats,
                   RemotePlace there, std::uint32_t phase) {
  QueuePair& pair = *ends_[static_cast<std::size_t>(to)].pair;
  while (pair.room() < 2) Poll();
  QueuePair::WriteArgs data;
  data.pieces[0] = {from, floats * sizeof(float), registration_.local_key()};
  data.there = there;
  const bool together = data.pieces[0].bytes <= kWithImmediate;
  if (together) data.immediate = phase;
  pair.Write(data);
  if (together) return;
  QueuePair::WriteArgs number;
  number.immediate = phase;
  pair.Write(number);
}

void BareRank::Await(std::uint32_t phase, std::uint64_t notices) {
  awaited_[phase] += notices;
  while (notices_[phase] < awaited_[phase]) Poll();
}

void BareRank::Allreduce() {
  const auto p = static_cast<std::size_t>(ranks_);
  const auto me = static_cast<std::size_t>(rank_);
  const std::size_t block = floats_ / p;
  for (std::size_t hop = 1; hop < p; ++hop) {
    const std::size_t to = (me + hop) % p;
    Put(static_cast<int>(to), pool_ + to * block, block,
        ends_[to].slots.At(me * block * sizeof(float)), 0);
  }
  rail_->Flush();
  const std::uint64_t peers = p - 1;
  Await(0, peers);
  float* const sum = pool_ + me * block;
  for (std::size_t from = 0; from < p; ++from) {
    if (from == me) continue;
    const float* const part = slots_ + from * block;
    for (std::size_t i = 0; i < block; ++i) sum[i] += part[i];
  }
  for (std::size_t hop = 1; hop < p; ++hop) {
    const std::size_t to = (me + hop) % p;
    Put(static_cast<int>(to), sum, block,
        ends_[to].pool.At(me * block * sizeof(float)), 1);
  }
  rail_->Flush();
  Await(1, peers);
}

void BareRank::Write(int to, int times) {
  QueuePair& pair = *ends_[static_cast<std::size_t>(to)].pair;
  for (int i = 0; i < times; ++i) {
    Put(to, pool_, floats_, ends_[static_cast<std::size_t>(to)].pool, 0);
    rail_->Flush();
    while (pair.room() < QueuePair::kDepth - 2 * kMostWrites) Poll();
  }
  while (!pair.idle()) Poll();
}

void BareRank::AwaitWrites(int times) {
  Await(0, static_cast<std::uint64_t>(times));
}

}  // namespace gradientflow::benchmarks
