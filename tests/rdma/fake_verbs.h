#pragma once

#include <infiniband/verbs.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/manual_clock.h"
#include "transports/rdma/verbs_api.h"

// RDMA devices that are memory of this process: hosts with devices on one
// network, and a VerbsApi for each. Reliable connections (RC) do RDMA writes,
// with immediate data or without, and sends.
//
//   post_send -> the pair's send queue -> the wire -> memory of the peer
//                                            |    \-> completion of a receive
//                   completion of the send <- acknowledgement
//
// The rules are those of the specification and of Soft-RoCE, the kernel's RDMA
// over Ethernet. Where devices differ, the strictest holds:
//  * What is sent is read when it travels, and not when it is posted. What does
//    not fit into one packet arrives in several parts, the last bytes first.
//  * Queues and limits are exactly as long as was asked for. A place in a send
//    queue is free once a completion of it, or of a later one, was polled.
//  * A local key is never equal to the remote key of its region.
//  * A completion with an error has no meaning but its wr_id, status and
//    qp_num; its other fields are rubbish.
//  * Pairs whose numbers do not match (address, number, first PSN) never hear
//    each other, and who writes gets IBV_WC_RETRY_EXC_ERR.
//  * An answer counts as lost with what it answers: 7 as a retry count means
//    for ever, as for Soft-RoCE.
//  * What a real library would do badly with (a destroyed object, an event that
//    was not acknowledged) is a problem, for which the test fails.
namespace gradientflow {

namespace fake_verbs {
class Fabric;
}  // namespace fake_verbs

struct FakeGid {
  std::string address;  // As IPv4 or IPv6. Empty: no address has this index.
  ibv_gid_type type = IBV_GID_TYPE_ROCE_V2;
  unsigned interface = 1;
};

struct FakePort {
  bool active = true;
  bool ethernet = true;        // Otherwise InfiniBand.
  ibv_mtu mtu = IBV_MTU_1024;  // What is active, and the most.
  std::uint16_t lid = 0;       // For InfiniBand.
  // The most that one request has; longer ones cannot be posted.
  std::uint32_t max_message_bytes = 1U << 31;
  std::vector<FakeGid> gids;  // By index.
};

struct FakeDevice {
  std::string name;  // No two of the network have the same.
  std::vector<FakePort> ports;
  int max_queue_entries = 4096;   // Of a send or receive queue.
  int max_completions = 1 << 16;  // Of a completion queue.
  int max_sge = 8;                // At most 8.
  std::uint32_t max_inline_bytes = 256;
  std::uint64_t max_mr_bytes = std::uint64_t{1} << 40;
  bool dma_buf = true;  // Otherwise EOPNOTSUPP.
  // The folder that stands for that of the device in sysfs; empty: none.
  std::string sysfs;
};

struct FakeHost {
  std::vector<FakeDevice> devices;
  // What may be registered, in bytes of whole pages; then ENOMEM.
  std::size_t memlock_bytes = SIZE_MAX;
  ibv_fork_status fork = IBV_FORK_UNNEEDED;
  // Whether an address is in memory of an accelerator; empty: there is none.
  // The kernel knows such an address only with nvidia-peermem; otherwise
  // registering it is EFAULT. What peers write to such memory, registered in
  // whatever way, is not there before FlushGpus().
  std::function<bool(const void*)> of_gpu = {};
  bool peermem = false;
};

// One device "fakeN", with an Ethernet port and four GIDs, of which the last is
// the one to use: RoCE v2 with the address 10.9.0.(N+1). Its index differs from
// host to host.
FakeHost UsualHost(int index);

struct FakeVerbsOptions {
  std::uint64_t seed = 1;
  // Nothing moves until the test calls Advance() or Step(), and time is that of
  // `clock`, or of the network itself if there is none. Otherwise time is real:
  // who posts or polls delivers what is due, and a thread what is due later.
  bool stepped = false;
  ManualClock* clock = nullptr;  // Not owned.
  // Each message and acknowledgement takes `delay` one way, and a share of them
  // takes up to `late_by` longer.
  Clock::Time delay{0};
  double late_share = 0.25;
  Clock::Time late_by = std::chrono::microseconds(20);
  // Shares of messages, and of acknowledgements, that have to be sent again
  // after the time-out of the pair.
  double lost = 0;
  double lost_acks = 0;
  // The share of messages that end with IBV_WC_RETRY_EXC_ERR.
  double failing = 0;
  // Whether it is a problem that a message finds no receive posted.
  bool rnr_is_a_problem = true;
  // As Soft-RoCE does it with those of several packets.
  bool rnr_ends_long_writes = false;
  // IBV_EVENT_QP_ACCESS_ERR at the target of a refused write; Soft-RoCE has
  // none.
  bool access_events = false;
  // Destroying a pair drops its completions that were not polled.
  bool drop_completions_of_destroyed = false;
};

// What one host has done so far.
struct FakeVerbsStats {
  std::uint64_t writes = 0;  // RDMA writes without and with immediate data,
  std::uint64_t writes_with_imm = 0;  // and sends, that were posted.
  std::uint64_t sends = 0;
  std::uint64_t bytes = 0;  // Of all of these.
  std::uint64_t inlined = 0;
  std::uint64_t signalled = 0;
  std::uint64_t post_calls = 0;
  std::uint64_t receives = 0;  // Posted.
  std::uint64_t delivered = 0;
  std::uint64_t completions = 0;  // Of all kinds.
  std::uint64_t errors = 0;       // Those with errors other than flushes.
  std::uint64_t flushes = 0;
  std::uint64_t rnr = 0;  // Messages, of this host, that found no receive.
  std::uint64_t retries = 0;
  std::uint64_t duplicates = 0;      // Received again, and dropped.
  std::uint64_t refused_writes = 0;  // To this host's memory.
  std::uint64_t registrations = 0;
  std::uint64_t deregistrations = 0;
  std::uint64_t registered_bytes = 0;  // Now, and the most so far.
  std::uint64_t most_registered_bytes = 0;
  std::uint64_t gpu_bytes_read = 0;     // To be sent,
  std::uint64_t gpu_bytes_written = 0;  // by peers.
  unsigned access_granted = 0;          // All bits that any region has had.
  std::uint64_t completion_events = 0;
  std::uint64_t async_events = 0;
};

// Thread-safe. It outlives all uses of its VerbsApis; whatever is then left of
// their objects, and each problem that nobody took, fails the test.
class FakeVerbs {
 public:
  // Makes `hosts` of the usual kind.
  explicit FakeVerbs(int hosts, const FakeVerbsOptions& options = {});
  ~FakeVerbs();
  FakeVerbs(const FakeVerbs&) = delete;
  FakeVerbs& operator=(const FakeVerbs&) = delete;

  // Returns its index, counted from 0. There are at most 64 in a process.
  int AddHost(const FakeHost& host);
  std::shared_ptr<const VerbsApi> api(int host) const;
  FakeVerbsStats stats(int host) const;
  // What this device has posted.
  std::uint64_t BytesOf(const std::string& device) const;
  // One line for each object of living hosts that was not destroyed.
  std::vector<std::string> Leaks() const;
  // What was done that real devices punish; forgotten then.
  std::vector<std::string> TakeProblems();

  // For stepped ones. Advance() moves time by `by`, and what is due until then;
  // Step() moves what is due next and time to it, and returns false if there is
  // nothing; Pending() is the number of things that will move.
  void Advance(Clock::Time by);
  bool Step();
  std::size_t Pending() const;
  Clock::Time Now() const;

  // --- Faults.

  // The n-th call from now (1: the next) of a host of that name of VerbsApi,
  // "reg_mr" for example, fails with this errno, and so do those after it, if
  // `times` is more than 1.
  void FailCall(int host, std::string_view call, int n, int error,
                int times = 1);
  // The n-th message from now that this host sends ends with this status.
  void FailMessage(int host, int n, ibv_wc_status status);
  // Lets what these two have asked for not happen any more. Returns whether
  // anything of it had yet to come.
  bool ForgetFaults(int host);
  // A port that is down sends and receives nothing.
  void SetPort(const std::string& device, int port, bool active);
  // Replaces an address, or removes it if it is empty.
  void SetGid(const std::string& device, int port, int index,
              const FakeGid& gid);
  // The cable between two devices.
  void SetCable(const std::string& one, const std::string& other, bool whole);
  // As a device that is pulled out does.
  void RemoveDevice(const std::string& device);
  // As of a process that died: whatever it had is gone, and nobody is told.
  void KillHost(int host);
  // An asynchronous event of a port, or of the device.
  void Inject(const std::string& device, ibv_event_type event, int port = 1);
  void SetMemlock(int host, std::size_t bytes);

  // What has been written to memory of accelerators becomes visible there, as
  // far as `of` says so of the address at which it was registered.
  void FlushGpus(const std::function<bool(const void*)>& of);

 private:
  const std::unique_ptr<fake_verbs::Fabric> fabric_;
};

}  // namespace gradientflow
