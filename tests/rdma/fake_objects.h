#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "tests/rdma/fake_order.h"
#include "tests/rdma/fake_verbs.h"

// The objects of the fake devices. Each is the struct of verbs.h that its user
// sees, and behind that what only the device knows. The lock of their Fabric
// guards all of it.
namespace gradientflow::fake_verbs {

class Fabric;
struct Host;

inline constexpr int kMostSge = 8;

struct Region;
struct Pair;

struct Device : ibv_device {
  Host* host = nullptr;
  FakeDevice is;
  std::vector<std::vector<ibv_gid>> gids;  // Of each port, as `is` has them.
  bool removed = false;
  std::uint64_t posted_bytes = 0;
  std::uint32_t next_number = 0;
  std::uint32_t next_key = 0;
  std::unordered_map<std::uint32_t, Region*> regions;  // By both keys.
  std::unordered_map<std::uint32_t, Pair*> pairs;      // By number.
};

struct Context : ibv_context {
  Device* on = nullptr;
  int children = 0;
  std::deque<ibv_async_event> events;  // As many as async_fd counts.
};

struct Domain : ibv_pd {
  Context* on = nullptr;
  int children = 0;
};

struct Region : ibv_mr {
  Domain* in = nullptr;
  Device* on = nullptr;
  std::uint64_t start = 0;  // The address that users of the keys count from.
  char* memory = nullptr;
  unsigned access = 0;
  std::size_t locked_bytes = 0;
  void* mapping = nullptr;  // Of a dma-buf.
  std::size_t mapped_bytes = 0;
  // If the memory is an accelerator's, what peers have written is here, and
  // these parts of it are not in the memory yet.
  bool of_gpu = false;
  std::vector<char> arrived;
  std::vector<std::pair<std::size_t, std::size_t>> unflushed;
  // These two stand for an order: what was done before it was registered, and
  // all copies.
  char registered = 0;
  char copied = 0;
};

struct Queue;

struct Channel : ibv_comp_channel {
  Context* on = nullptr;
  int children = 0;
  std::deque<Queue*> events;  // As many as fd counts.
};

struct Completion {
  ibv_wc wc = {};
  std::uint64_t pair = 0;  // Its identity.
  bool of_send = false;
  std::uint64_t sequence = 0;  // Of the send that it is about.
  const char* place = nullptr;
};

struct Queue : ibv_cq {
  Context* on = nullptr;
  Channel* to = nullptr;
  int children = 0;  // A pair counts twice if it uses it twice.
  bool broken = false;
  bool armed = false;
  bool solicited_only = false;
  int unacknowledged = 0;
  std::deque<Completion> entries;
  // One byte for each place, which stands for its order.
  std::vector<char> places;
  std::uint64_t pushed = 0;
};

struct Send {
  ibv_send_wr wr = {};  // Its pointers are not followed any more.
  std::array<ibv_sge, kMostSge> sges = {};
  std::vector<char> inlined;
  bool signalled = false;
  std::uint64_t bytes = 0;
  std::uint64_t sequence = 0;
  Clock::Time due{0};
  // Packets whose bytes have not been written yet.
  std::uint64_t packets = 0;
  bool started = false;
  int tries = 0;
  int rnr_tries = 0;
  ibv_wc_status fails = IBV_WC_SUCCESS;  // As the test asked for.
  char posted = 0;                       // Stands for an order.
};

struct Receive {
  std::uint64_t wr_id = 0;
  int count = 0;
  std::array<ibv_sge, kMostSge> sges = {};
  char posted = 0;  // Stands for an order.
};

struct Pair : ibv_qp {
  std::uint64_t identity = 0;  // Never used again, unlike numbers and pointers.
  Device* on = nullptr;
  Domain* in = nullptr;
  Queue* sends_to = nullptr;
  Queue* receives_to = nullptr;
  ibv_qp_cap cap = {};
  bool signals_all = false;
  ibv_qp_state now = IBV_QPS_RESET;  // `state` is what the library knows of it.
  ibv_qp_attr set = {};              // By modify_qp.
  // From the oldest that is not complete. The first `delivered` of them wait
  // for an acknowledgement.
  std::deque<Send> sends;
  std::size_t delivered = 0;
  // Whether an event is due which delivers the next one. There is one at a
  // time, so that no message overtakes another of its pair.
  bool moving = false;
  std::uint64_t posted = 0;
  std::uint64_t freed = 0;  // Sends before this one have no place any more.
  // Both count on from what was set; that they are cut to 24 bits changes
  // nothing in whether they are equal.
  std::uint32_t send_psn = 0;
  std::deque<Receive> receives;
  std::uint64_t places_taken = 0;  // Of the receive queue.
  std::uint32_t expected_psn = 0;
  // Who hears it, as long as the network has not changed since.
  Pair* peer = nullptr;
  std::uint64_t peer_of = 0;
  Order order;
  char copied = 0;  // Stands for an order, of copies out of and into memory.
};

struct Fault {
  int in = 0;  // Calls.
  int error = 0;
  int times = 1;
};

struct Host {
  Fabric* fabric = nullptr;
  int index = 0;
  std::size_t place = 0;  // In the table of fake_api.cc.
  bool alive = true;
  FakeHost is;
  std::vector<std::unique_ptr<Device>> devices;
  std::shared_ptr<const VerbsApi> api;
  FakeVerbsStats stats;
  std::multimap<std::string, Fault, std::less<>> faults;
  std::vector<std::pair<int, ibv_wc_status>> message_faults;
  std::uint64_t locked_bytes = 0;
  int lists = 0;                   // Of devices, not freed.
  std::uint64_t events_taken = 0;  // Asynchronous ones.
  std::uint64_t acknowledged = 0;
  // All that is not destroyed.
  std::unordered_set<Context*> contexts;
  std::unordered_set<Domain*> domains;
  std::unordered_set<Region*> regions;
  std::unordered_set<Channel*> channels;
  std::unordered_set<Queue*> queues;
  std::unordered_set<Pair*> pairs;
};

}  // namespace gradientflow::fake_verbs
