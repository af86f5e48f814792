#include "benchmarks/rdma/bare.h"

#include <sched.h>

#include <algorithm>
#include <cassert>
#include <stdexcept>
#include <utility>

#include "benchmarks/lib/must.h"
#include "kernels/kernels.h"
#include "transports/rdma/choose.h"
#include "transports/rdma/devices.h"
#include "transports/rdma/verbs_api.h"

namespace gradientflow::benchmarks {
namespace {

constexpr int kReceives = 64;
// As the library does it.
constexpr std::size_t kWithImmediate = 8192;

// As the library adds, since its time would hide that of the messages: a
// virtual machine may lack the vectors for which compilers and kernels differ.
void Sum(const std::vector<const void*>& parts, int own, float* sum,
         std::size_t floats) {
  void* to = sum;
  kernels::CpuKernels().reduce_many({.srcs = parts.data(),
                                     .sources = static_cast<int>(parts.size()),
                                     .own = own,
                                     .src_type = kernels::DType::kFloat32,
                                     .dsts = &to,
                                     .dests = 1,
                                     .dst_type = kernels::DType::kFloat32,
                                     .round_type = kernels::DType::kFloat32,
                                     .n = floats,
                                     .op = kernels::ReduceOp::kSum,
                                     .scale = 1.0F,
                                     .nonfinite = nullptr},
                                    nullptr);
}

}  // namespace

BareRank::BareRank(const std::string& port, int rank, int ranks,
                   std::size_t floats)
    : rank_(rank),
      ranks_(ranks),
      floats_(floats),
      ends_(static_cast<std::size_t>(ranks)) {
  const auto verbs = Must(LoadVerbs());
  const auto devices = Must(ListRdmaDevices(*verbs));
  rail_ = Must(Rail::Open(
      {verbs, Must(ChooseRail(devices, {"=" + port, {}, 0})), ranks, 0, 4}));
  memory_ = Must(CardMemory::Map(2 * floats * sizeof(float)));
  registration_ = Must(Registration::Make(
      *verbs, rail_->pd(), {memory_.data(), memory_.bytes(), {}},
      CardRights::kPeersMayWrite, "the pool"));
  pool_ = reinterpret_cast<float*>(memory_.data());
  slots_ = pool_ + floats;
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == rank) continue;
    End& end = ends_[static_cast<std::size_t>(peer)];
    end.notices = &notices_;
    end.pair = Must(QueuePair::Create(rail_.get(), &end, kReceives));
  }
}

void BareRank::Link(const std::vector<std::unique_ptr<BareRank>>& ranks) {
  for (const auto& a : ranks) {
    for (const auto& b : ranks) {
      if (a == b) continue;
      End& here = a->ends_[static_cast<std::size_t>(b->rank_)];
      const End& there = b->ends_[static_cast<std::size_t>(a->rank_)];
      const auto match =
          MatchGids(a->rail_->port().gids, b->rail_->port().gids);
      if (!match) throw std::runtime_error("no address fits");
      RdmaAddress address = there.pair->address();
      address.gid = b->rail_->port().gids[match->second];
      Must(here.pair->Connect(a->rail_->port().gids[match->first], address));
      const std::uint32_t key = b->registration_.remote_key();
      here.pool = {reinterpret_cast<std::uintptr_t>(b->pool_), key};
      here.slots = {reinterpret_cast<std::uintptr_t>(b->slots_), key};
    }
  }
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

// Each segment is an allreduce of its own part. All of them are under way at
// once, as in the library. Phase 2s is that in which segment s is collected,
// and in 2s + 1 its sums are spread.
void BareRank::Allreduce(int segments) {
  assert(2 * segments <= static_cast<int>(notices_.size()));
  const auto parts = static_cast<std::size_t>(segments);
  const auto p = static_cast<std::size_t>(ranks_);
  const auto me = static_cast<std::size_t>(rank_);
  const std::size_t block = floats_ / parts / p;
  for (std::size_t s = 0; s < parts; ++s) {
    const std::size_t begin = s * p * block;
    for (std::size_t hop = 1; hop < p; ++hop) {
      const std::size_t to = (me + hop) % p;
      Put(static_cast<int>(to), pool_ + begin + to * block, block,
          ends_[to].slots.At((begin + me * block) * sizeof(float)),
          static_cast<std::uint32_t>(2 * s));
    }
  }
  rail_->Flush();
  const std::uint64_t peers = p - 1;
  for (std::size_t s = 0; s < parts; ++s) {
    Await(static_cast<std::uint32_t>(2 * s), peers);
    const std::size_t begin = s * p * block;
    float* const sum = pool_ + begin + me * block;
    std::vector<const void*> parts_of_all(p, sum);
    for (std::size_t from = 0; from < p; ++from) {
      if (from != me) parts_of_all[from] = slots_ + begin + from * block;
    }
    Sum(parts_of_all, rank_, sum, block);
    for (std::size_t hop = 1; hop < p; ++hop) {
      const std::size_t to = (me + hop) % p;
      Put(static_cast<int>(to), sum, block,
          ends_[to].pool.At((begin + me * block) * sizeof(float)),
          static_cast<std::uint32_t>(2 * s + 1));
    }
    rail_->Flush();
  }
  for (std::size_t s = 0; s < parts; ++s) {
    Await(static_cast<std::uint32_t>(2 * s + 1), peers);
  }
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
