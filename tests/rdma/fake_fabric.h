#pragma once

#include <infiniband/verbs.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/manual_clock.h"
#include "tests/rdma/fake_objects.h"
#include "tests/rdma/fake_order.h"
#include "tests/rdma/fake_verbs.h"

// The network between the fake devices: what moves, and when. All that will
// happen is an event of a pair in one heap, ordered by time and then at random:
// a message of one pair never overtakes another of the same, but those of
// different pairs do overtake each other.
namespace gradientflow::fake_verbs {

class Fabric {
 public:
  explicit Fabric(const FakeVerbsOptions& options);
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  HiddenMutex mutex;
  const FakeVerbsOptions options;

  // --- fake_fabric.cc: hosts, time, events.

  Host* AddHost(const FakeHost& is) GF_REQUIRES(mutex);
  Host* At(int host) GF_REQUIRES(mutex) {
    return hosts_.at(static_cast<std::size_t>(host)).get();
  }
  // Throws if there is none.
  Device* Find(const std::string& device) GF_REQUIRES(mutex);
  Pair* Find(std::uint64_t identity) GF_REQUIRES(mutex);
  void Know(Pair* pair) GF_REQUIRES(mutex);
  void Forget(Pair* pair) GF_REQUIRES(mutex);
  void Problem(std::string text) GF_REQUIRES(mutex);
  std::vector<std::string> TakeProblems() GF_REQUIRES(mutex) {
    return std::exchange(problems_, {});
  }
  std::vector<std::string> Leaks() GF_REQUIRES(mutex);
  void FlushGpus(const std::function<bool(const void*)>& of) GF_REQUIRES(mutex);
  // Whether it happens this time, which it does with this probability.
  bool Chance(double share) GF_REQUIRES(mutex);
  std::uint64_t Random() GF_REQUIRES(mutex);
  Clock::Time Now() const { return clock_->Now(); }
  void SetCable(Device* one, Device* other, bool whole) GF_REQUIRES(mutex);
  // Something has changed that decides who hears whom.
  void Changed() GF_REQUIRES(mutex) { ++topology_; }

  // Moves what is due now, unless the test does that.
  void Pump() GF_REQUIRES(mutex);
  void AdvanceTo(Clock::Time time) GF_REQUIRES(mutex);
  bool Step() GF_REQUIRES(mutex);
  std::size_t pending() const GF_REQUIRES(mutex) { return events_.size(); }

  // --- fake_wire.cc: what travels.

  // A send was added to the pair's queue.
  void Posted(Pair* pair) GF_REQUIRES(mutex);
  // The pair fails: whatever is queued is flushed.
  void Break(Pair* pair) GF_REQUIRES(mutex);

  // --- fake_completions.cc.

  void Complete(Pair* pair, const Send& send, ibv_wc_status status)
      GF_REQUIRES(mutex);
  void Complete(Pair* pair, const Receive& receive, ibv_wc wc, bool solicited)
      GF_REQUIRES(mutex);
  void Raise(Context* context, const ibv_async_event& event) GF_REQUIRES(mutex);
  // Raises it in all contexts of the device.
  void Raise(Device* device, ibv_event_type type, int port) GF_REQUIRES(mutex);

 private:
  enum class What { kDeliver, kAcknowledge, kLostAck };
  struct Event {
    Clock::Time due{0};
    std::uint64_t tie = 0;
    std::uint64_t pair = 0;
    What what = What::kDeliver;
    std::uint64_t sequence = 0;  // Up to which sends are acknowledged.
    int tries = 0;
    bool operator<(const Event& o) const {  // The heap's top is the greatest.
      return due != o.due ? due > o.due : tie > o.tie;
    }
  };

  // fake_fabric.cc
  void Schedule(Event event) GF_REQUIRES(mutex);
  void RunNext() GF_REQUIRES(mutex);
  void Deliveries();
  Clock::Time Late() GF_REQUIRES(mutex);

  // fake_wire.cc
  Pair* FindPeer(const Pair& pair) GF_REQUIRES(mutex);
  Pair* Peer(Pair* pair) GF_REQUIRES(mutex);
  void Deliver(Pair* pair) GF_REQUIRES(mutex);
  void DeliverTo(Pair* peer, Pair* pair, Send* send) GF_REQUIRES(mutex);
  void Write(Pair* pair, Pair* peer, Send* send) GF_REQUIRES(mutex);
  // Returns whether there was one, and it was used.
  bool UseReceive(Pair* pair, Pair* peer, const Send& send) GF_REQUIRES(mutex);
  ibv_wc_status Scatter(Pair* pair, Pair* peer, const Send& send)
      GF_REQUIRES(mutex);
  void Delivered(Pair* pair, Pair* peer) GF_REQUIRES(mutex);
  void Again(Pair* pair, Clock::Time after) GF_REQUIRES(mutex);
  void Retry(Pair* pair) GF_REQUIRES(mutex);
  void NotReady(Pair* pair, Pair* peer) GF_REQUIRES(mutex);
  void Refuse(Pair* pair, Pair* peer, ibv_wc_status status) GF_REQUIRES(mutex);
  void Fail(Pair* pair, ibv_wc_status status) GF_REQUIRES(mutex);
  void Acknowledge(Pair* pair, std::uint64_t sequence) GF_REQUIRES(mutex);
  void SendAck(Pair* pair, std::uint64_t sequence, int tries)
      GF_REQUIRES(mutex);
  void LostAck(Pair* pair, const Event& event) GF_REQUIRES(mutex);

  // fake_completions.cc
  void Push(Queue* queue, Pair* by, Completion completion, bool solicited)
      GF_REQUIRES(mutex);
  void Overflow(Queue* queue) GF_REQUIRES(mutex);

  ManualClock own_clock_;
  const SteadyClock steady_;
  ManualClock* const manual_;  // Null if time is real.
  const Clock* const clock_;
  std::vector<std::unique_ptr<Host>> hosts_ GF_GUARDED_BY(mutex);
  std::unordered_map<std::uint64_t, Pair*> pairs_ GF_GUARDED_BY(mutex);
  std::vector<std::pair<Device*, Device*>> cut_ GF_GUARDED_BY(mutex);
  std::vector<std::string> problems_ GF_GUARDED_BY(mutex);
  std::uint64_t random_ GF_GUARDED_BY(mutex);
  std::uint64_t identities_ GF_GUARDED_BY(mutex) = 0;
  std::uint64_t topology_ GF_GUARDED_BY(mutex) = 1;
  std::vector<Event> events_ GF_GUARDED_BY(mutex);  // A heap.
  // When the thread looks again by itself.
  Clock::Time wakes_ GF_GUARDED_BY(mutex) = Clock::Time::max();
  bool stop_ GF_GUARDED_BY(mutex) = false;
  std::condition_variable_any changed_;
  std::thread thread_;
};

// --- fake_devices.cc

// As a GID, an IPv4 address within an IPv6 one; all zero if it is neither.
ibv_gid ToGid(const std::string& address);
// Destroys all objects that are left.
void Destroy(Host* host);

// --- fake_memory.cc

// Where bytes of a local key are, as a pair may use them; null if it may not.
char* Local(const Pair& pair, const ibv_sge& sge, unsigned access,
            Region** region);
// The same for a remote key, at the pair that is written to.
char* Remote(const Pair& pair, std::uint32_t key, std::uint64_t address,
             std::uint64_t bytes, Region** region);
// Copies a part of what is sent. REQUIRES that all of it is readable.
void Gather(Pair* pair, const Send& send, std::uint64_t offset, char* to,
            std::uint64_t bytes);
bool Readable(const Pair& pair, const Send& send);

// --- fake_api.cc

// Takes a place in the table of hosts.
std::shared_ptr<const VerbsApi> MakeApi(Host* host);
// Makes the place free again.
void DropApi(Host* host);

}  // namespace gradientflow::fake_verbs
