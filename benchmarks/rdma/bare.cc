#include "benchmarks/rdma/bare.h"

#include <sched.h>

#include <cassert>
#include <stdexcept>

#include "benchmarks/rdma/parts.h"
#include "transports/rdma/choose.h"

namespace gradientflow::benchmarks {
namespace {

constexpr int kReceives = 64;
// As the library does it.
constexpr std::size_t kWithImmediate = 8192;

}  // namespace

BareRank::BareRank(const std::string& port, std::size_t rank, std::size_t ranks,
                   std::size_t floats)
    : rank_(rank), floats_(floats), ends_(ranks) {
  rail_ = OpenPort(port, ranks, kReceives);
  memory_ = Must(CardMemory::Map(2 * floats * sizeof(float)));
  registration_ = Must(Registration::Make(
      rail_->verbs(), rail_->pd(), {memory_.data(), memory_.bytes(), {}},
      CardRights::kPeersMayWrite, "the pool"));
  pool_ = reinterpret_cast<float*>(memory_.data());
  slots_ = pool_ + floats;
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    if (peer == rank) continue;
    ends_[peer].notices = &notices_;
    ends_[peer].pair =
        Must(QueuePair::Create(rail_.get(), &ends_[peer], kReceives));
  }
}

void BareRank::Link(BareRank& other) {
  const auto& mine = rail_->port().gids;
  const auto& theirs = other.rail_->port().gids;
  const auto match = MatchGids(mine, theirs);
  if (!match) throw std::runtime_error("no address fits");
  RdmaAddress address = other.ends_[rank_].pair->address();
  address.gid = theirs[match->second];
  End& end = ends_[other.rank_];
  Must(end.pair->Connect(mine[match->first], address));
  const std::uint32_t key = other.registration_.remote_key();
  end.pool = {reinterpret_cast<std::uintptr_t>(other.pool_), key};
  end.slots = {reinterpret_cast<std::uintptr_t>(other.slots_), key};
}

void BareRank::Poll() {
  if (!rail_->Poll()) ::sched_yield();
}

void BareRank::Put(const float* from, std::size_t floats, const End& to,
                   RemotePlace there, std::size_t phase) {
  while (to.pair->room() < 2) Poll();
  QueuePair::WriteArgs data;
  const std::size_t bytes = floats * sizeof(float);
  data.Add(from, bytes, registration_.local_key());
  data.there = there;
  QueuePair::WriteArgs number;
  const bool together = bytes <= kWithImmediate;
  (together ? data : number).immediate = static_cast<std::uint32_t>(phase);
  to.pair->Write(data);
  if (!together) to.pair->Write(number);
}

void BareRank::Await(std::size_t phase, std::uint64_t notices) {
  awaited_[phase] += notices;
  while (notices_[phase] < awaited_[phase]) Poll();
}

// Each segment is an allreduce of its own part. All of them are under way at
// once, as in the library. Phase 2s is that in which segment s is collected,
// and in 2s + 1 its sums are spread.
void BareRank::Allreduce(std::size_t segments) {
  assert(segments <= kMostSegments);
  const std::size_t ranks = ends_.size();
  const std::size_t block = floats_ / segments / ranks;
  for (std::size_t s = 0; s < segments; ++s) {
    const std::size_t begin = s * ranks * block;
    for (std::size_t hop = 1; hop < ranks; ++hop) {
      const std::size_t to = (rank_ + hop) % ranks;
      Put(pool_ + begin + to * block, block, ends_[to],
          ends_[to].slots.At((begin + rank_ * block) * sizeof(float)), 2 * s);
    }
  }
  rail_->Flush();
  for (std::size_t s = 0; s < segments; ++s) {
    Await(2 * s, ranks - 1);
    const std::size_t begin = s * ranks * block;
    const std::size_t mine = begin + rank_ * block;
    std::vector<const void*> parts(ranks, pool_ + mine);
    for (std::size_t from = 0; from < ranks; ++from) {
      if (from != rank_) parts[from] = slots_ + begin + from * block;
    }
    SumParts(parts, rank_, pool_ + mine, block);
    for (std::size_t hop = 1; hop < ranks; ++hop) {
      const End& to = ends_[(rank_ + hop) % ranks];
      Put(pool_ + mine, block, to, to.pool.At(mine * sizeof(float)), 2 * s + 1);
    }
    rail_->Flush();
  }
  for (std::size_t s = 0; s < segments; ++s) Await(2 * s + 1, ranks - 1);
}

void BareRank::Write(std::size_t to, int times) {
  const QueuePair& pair = *ends_[to].pair;
  for (int i = 0; i < times; ++i) {
    Put(pool_, floats_, ends_[to], ends_[to].pool, 0);
    rail_->Flush();
    while (pair.room() < QueuePair::kDepth - 2 * kMostWrites) Poll();
  }
  while (!pair.idle()) Poll();
}

void BareRank::AwaitWrites(int times) {
  Await(0, static_cast<std::uint64_t>(times));
}

}  // namespace gradientflow::benchmarks
