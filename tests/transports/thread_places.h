#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/done.h"
#include "transports/link.h"
#include "transports/remote_places.h"

// Ranks that are threads of one process and write into each other's memory, as
// network cards do.
namespace gradientflow::testing {

class ThreadPlaces;

// Carries what ranks put. Data is read and written when it is *delivered*, in
// the order of a pair's Put()s, at a moment that a seeded random number decides
// and by whichever rank's thread is polling. A Done runs some time after that.
// Every access is checked against the memory that the ranks have registered. As
// long as memory is lent, they must not take it back, and must not change what
// is in their slots. The first thing that is wrong is kept as error().
// Thread-safe.
class PlacesNetwork {
 public:
  PlacesNetwork(int size, std::size_t slot_bytes, std::uint64_t seed);
  ~PlacesNetwork();
  PlacesNetwork(const PlacesNetwork&) = delete;
  PlacesNetwork& operator=(const PlacesNetwork&) = delete;

  // For the thread of `rank`.
  ThreadPlaces& places(int rank) {
    return *ranks_[static_cast<std::size_t>(rank)];
  }
  // Makes room for so many Put()s of each rank, so that no more is allocated.
  void Reserve(std::size_t puts);
  // What was put from `from` to `to` and has not been delivered.
  std::size_t undelivered(int from, int to) const;
  // The first access that was wrong; "" if there was none.
  std::string error() const;

 private:
  friend class ThreadPlaces;
  // What a rank has put to another one; at most two pieces.
  struct Flight {
    std::array<ConstBufferView, 2> pieces;
    RemotePlace there;
    std::uint32_t notice = 0;
    Done done;
  };
  // They come in any order, as by several cards. Allocates nothing once it has
  // had its greatest length.
  struct Lane {
    std::vector<Flight> flights;
    std::size_t next = 0;
    std::size_t untold = 0;  // Notices, of flights that are over as well.
    bool closed = false;

    std::size_t size() const { return flights.size() - next; }
    Flight Pop(std::uint64_t dice);  // Any of them.
  };
  struct Region {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    std::uint64_t address = 0;
    std::uint32_t key = 0;
    bool of_device = false;
  };
  // What has come for a device and is not visible there yet.
  struct Held {
    std::byte* to = nullptr;
    std::vector<std::byte> bytes;
  };
  // All below REQUIRE mutex_.
  std::size_t Index(int from, int to) const {
    return static_cast<std::size_t>(from) * ranks_.size() +
           static_cast<std::size_t>(to);
  }
  Lane& LaneOf(int from, int to) { return lanes_[Index(from, to)]; }
  // Delivers so many flights, unless fewer are in the air.
  void DeliverSome(unsigned flights);
  void Deliver(int from, int to, const Flight& flight);
  const Region* Find(int rank, const void* data, std::size_t bytes) const;
  // Where `bytes` from `there` on are, or null.
  std::byte* At(int rank, RemotePlace there, std::size_t bytes);
  void Write(int rank, std::byte* to, const ConstBufferView& piece);
  void Wrong(const std::string& what);

  const int size_;
  mutable std::mutex mutex_;
  std::minstd_rand random_;  // Each poll draws several.
  std::string error_;
  std::vector<Lane> lanes_;
  std::vector<std::size_t> busy_;  // The lanes on which something flies.
  // Whether there is one. Only a hint to those who do not hold mutex_: ranks
  // that wait for each other poll a thousand times for each flight.
  std::atomic<bool> flying_ = false;
  std::vector<std::vector<Region>> regions_;  // By rank.
  std::vector<std::vector<Held>> held_;       // By rank.
  std::uint32_t next_key_ = 0x5eed;
  std::vector<std::unique_ptr<ThreadPlaces>> ranks_;
};

// One rank's end. Only the thread of the rank uses it.
class ThreadPlaces final : public RemotePlaces {
 public:
  // What this rank has done since the beginning.
  struct Counts {
    std::uint64_t puts = 0;
    std::uint64_t bytes = 0;
    std::uint64_t notices = 0;   // That have come.
    std::uint64_t done = 0;      // Puts whose Done has run.
    std::uint64_t messages = 0;  // That its links were given.
    std::size_t waiting = 0;     // Most notices for one peer that did not know.
    std::uint64_t from_slots = 0;   // Bytes put from slots,
    std::uint64_t from_device = 0;  // and from memory that was attached.
  };

  ThreadPlaces(PlacesNetwork& network, int rank, std::size_t slot_bytes);

  void SetSink(Sink* sink) override { sink_ = sink; }
  BufferView slots() const override { return slots_; }
  RemotePlace SlotsOf(int peer) const override;
  Result<BufferView> Allocate(std::size_t bytes) override;
  void Free(BufferView memory) override;
  Status Lend(BufferView memory) override;
  void Withdraw(BufferView memory) override { Deregister(memory.data); }
  // What is written there is not there before Flush().
  Result<std::string> Attach(const DeviceBuffer& buffer) override;
  void Detach(const std::byte* data) override { Deregister(data); }
  bool Reaches(const void* data, std::size_t bytes) const override;
  RemotePlace NameOf(const void* data) const override;
  void Put(int peer, std::span<const ConstBufferView> pieces, RemotePlace there,
           std::uint32_t notice, Done done) override;

  // All memory of this rank is reached from now on.
  void ReachAll();
  // Memory that the network reaches from now on, and no more.
  void Register(void* data, std::size_t bytes, bool of_device = false);
  void Deregister(const void* data);
  // What was written to memory that was attached becomes visible. Thread-safe.
  void Flush();

  const Counts& counts() const { return counts_; }

  void CountMessage() { ++counts_.messages; }

  // Lets the network deliver, and tells the sink what has come. For links.
  bool Poll();
  // Tells the sink what has come, and runs some of the Dones that are due, or
  // all.
  bool Tell(bool all = false);
  // Nothing goes to the peer or comes from it any more.
  void Close(int peer);
  std::size_t undelivered(int peer) const {
    return network_.undelivered(rank_, peer);
  }

 private:
  friend class PlacesNetwork;
  struct Told {
    int peer = 0;
    std::uint32_t notice = 0;
  };
  struct Due {
    int peer = 0;
    std::array<ConstBufferView, 2> pieces;
    std::size_t hash = 0;  // Of what was in the slots when it was delivered.
    Done done;
  };
  std::size_t HashOf(const std::array<ConstBufferView, 2>& pieces) const;

  PlacesNetwork& network_;
  const int rank_;
  bool reaches_all_ = false;  // Guarded by the network's mutex.
  // The memory of slots_, and what Allocate() gave.
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  BufferView slots_;
  Sink* sink_ = nullptr;
  Counts counts_;
  std::atomic<bool> mail_ = false;  // As flying_, of inbox_ and due_.
  // Guarded by the network's mutex, but for those that are running.
  std::vector<Told> inbox_;
  std::vector<Told> telling_;
  std::vector<Due> due_;
  std::vector<Due> running_;
};

// The links of one rank, which also poll its places. `events` get what the
// links tell; to be passed to the links instead of the fabric.
class PlacedLinkEvents final : public LinkEvents {
 public:
  PlacedLinkEvents(LinkEvents& inner, ThreadPlaces& places)
      : inner_(inner), places_(places) {}
  Result<Landing> OnHeader(int peer, int lane, const Header& header) override {
    return inner_.OnHeader(peer, lane, header);
  }
  void OnMessage(int peer, int lane, const Header& header) override {
    inner_.OnMessage(peer, lane, header);
  }
  // What the peer has put is told first.
  void OnDown(int peer, const Status& why) override {
    places_.Tell(/*all=*/true);
    inner_.OnDown(peer, why);
  }

 private:
  LinkEvents& inner_;
  ThreadPlaces& places_;
};
std::vector<std::unique_ptr<Link>> WithPlaces(
    std::vector<std::unique_ptr<Link>> links, ThreadPlaces& places);

}  // namespace gradientflow::testing
