#include "benchmarks/rdma/bare.h"

#include <sched.h>

#include <stdexcept>

#include "transports/rdma/choose.h"
#include "transports/rdma/devices.h"
#include "transports/rdma/verbs_api.h"

namespace gradientflow::benchmarks {

BareStream::End::End(const std::string& port, std::size_t bytes) {
  constexpr int kReceives = 64;
  const auto verbs = Must(LoadVerbs());
  const auto devices = Must(ListRdmaDevices(*verbs));
  rail = Must(Rail::Open(
      {verbs, Must(ChooseRail(devices, {"=" + port, {}, 0})), 2, 0, 4}));
  memory = Must(CardMemory::Map(bytes));
  registration = Must(Registration::Make(
      *verbs, rail->pd(), {memory.data(), memory.bytes(), {}},
      CardRights::kPeersMayWrite, "the memory of a stream"));
  pair = Must(QueuePair::Create(rail.get(), this, kReceives));
}

void BareStream::End::Connect(const End& peer) {
  const auto& mine = rail->port().gids;
  const auto& theirs = peer.rail->port().gids;
  const auto match = MatchGids(mine, theirs);
  if (!match) throw std::runtime_error("no address fits");
  RdmaAddress address = peer.pair->address();
  address.gid = theirs[match->second];
  Must(pair->Connect(mine[match->first], address));
}

void BareStream::End::Poll() const {
  if (!rail->Poll()) ::sched_yield();
}

BareStream::BareStream(const std::string& devices, std::size_t bytes)
    : from_(devices + "0:1", bytes), to_(devices + "1:1", bytes) {
  from_.Connect(to_);
  to_.Connect(from_);
}

void BareStream::Write(int times) {
  QueuePair::WriteArgs data;
  data.pieces[0] = {from_.memory.data(), from_.memory.bytes(),
                    from_.registration.local_key()};
  data.there = {reinterpret_cast<std::uintptr_t>(to_.memory.data()),
                to_.registration.remote_key()};
  // Its number has a request of its own behind it, as in the library.
  QueuePair::WriteArgs number;
  number.immediate = 0;
  QueuePair& pair = *from_.pair;
  for (int i = 0; i < times; ++i) {
    pair.Write(data);
    pair.Write(number);
    from_.rail->Flush();
    while (pair.room() < QueuePair::kDepth - 2 * kMostWrites) from_.Poll();
  }
  while (!pair.idle()) from_.Poll();
}

void BareStream::Await(int times) {
  to_.awaited += times;
  while (to_.awaited > 0) to_.Poll();
}

}  // namespace gradientflow::benchmarks
