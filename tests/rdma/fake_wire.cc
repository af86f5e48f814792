#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "tests/rdma/fake_fabric.h"

// A message of a pair, from its send queue to the peer's memory and back:
//
//   Posted -> Deliver -> checks -> Write or Scatter -> UseReceive -> Delivered
//                |                       |                 |            |
//              Retry                  Refuse            NotReady     SendAck
//                |                                         |            |
//               Fail  <------------------------------------+       Acknowledge
namespace gradientflow::fake_verbs {
namespace {

std::uint64_t PacketBytes(const Pair& pair) {
  return std::uint64_t{128} << static_cast<int>(pair.set.path_mtu);
}

std::uint32_t Packets(const Pair& pair, const Send& send) {
  const std::uint64_t packet = PacketBytes(pair);
  return static_cast<std::uint32_t>(
      std::max<std::uint64_t>(1, (send.bytes + packet - 1) / packet));
}

// Whether the peer expects its packets to have another size.
bool PacketsDiffer(const Pair& pair, const Pair& peer, const Send& send) {
  if (PacketBytes(pair) == PacketBytes(peer)) return false;
  return send.bytes > std::min(PacketBytes(pair), PacketBytes(peer));
}

bool IsWrite(const Send& send) {
  return send.wr.opcode == IBV_WR_RDMA_WRITE ||
         send.wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

bool HasImmediate(const Send& send) {
  return send.wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM ||
         send.wr.opcode == IBV_WR_SEND_WITH_IMM;
}

const FakePort& PortOf(const Pair& pair) {
  return pair.on->is.ports[pair.set.port_num - 1U];
}

bool SameGid(const ibv_gid& a, const ibv_gid& b) {
  return std::memcmp(a.raw, b.raw, sizeof(a.raw)) == 0;
}

// Its own address, or null if it has been removed.
const ibv_gid* GidOf(const Pair& pair) {
  const std::size_t port = pair.set.port_num - 1U;
  const std::size_t index = pair.set.ah_attr.grh.sgid_index;
  if (pair.on->is.ports[port].gids[index].address.empty()) return nullptr;
  return &pair.on->gids[port][index];
}

bool CanSend(const Pair& pair) {
  if (pair.on->removed || !PortOf(pair).active) return false;
  return pair.set.ah_attr.is_global == 0 || GidOf(pair) != nullptr;
}

// Whether `to` is where `from` sends to.
bool Names(const Pair& from, const Pair& to) {
  if (from.set.dest_qp_num != to.qp_num) return false;
  const ibv_ah_attr& address = from.set.ah_attr;
  const FakePort& port = PortOf(to);
  if (port.ethernet != PortOf(from).ethernet) return false;
  if (!port.ethernet && address.dlid != port.lid) return false;
  if (address.is_global == 0) return true;
  const ibv_gid* const gid = GidOf(to);
  if (gid == nullptr || !SameGid(*gid, address.grh.dgid)) return false;
  const auto type = [](const Pair& pair) {
    return PortOf(pair).gids[pair.set.ah_attr.grh.sgid_index].type;
  };
  return type(from) == type(to);
}

// The timers that a receiver can ask for, in units of 10 us.
Clock::Time RnrTimer(int code) {
  constexpr std::array<int, 32> kTimers = {
      65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
      48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
      2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return std::chrono::microseconds(10) * kTimers.at(code & 31);
}

Clock::Time TimeOut(const Pair& pair) {
  return std::chrono::nanoseconds(4096) * (std::int64_t{1} << pair.set.timeout);
}

}  // namespace

Pair* Fabric::FindPeer(const Pair& pair) {
  for (const auto& host : hosts_) {
    for (const auto& device : host->devices) {
      const auto found = device->pairs.find(pair.set.dest_qp_num);
      if (found == device->pairs.end()) continue;
      Pair* const peer = found->second;
      if (peer->now != IBV_QPS_RTR && peer->now != IBV_QPS_RTS) continue;
      if (!host->alive || !CanSend(*peer)) continue;
      if (!Names(pair, *peer) || !Names(*peer, pair)) continue;
      const std::pair ends(std::min(pair.on, device.get()),
                           std::max(pair.on, device.get()));
      if (std::count(cut_.begin(), cut_.end(), ends) != 0) continue;
      return peer;
    }
  }
  return nullptr;
}

Pair* Fabric::Peer(Pair* pair) {
  if (pair->peer_of != topology_) {
    pair->peer = FindPeer(*pair);
    pair->peer_of = topology_;
  }
  Pair* const peer = pair->peer;
  return peer != nullptr && peer->expected_psn == pair->send_psn ? peer
                                                                 : nullptr;
}

void Fabric::FlushGpus(const std::function<bool(const void*)>& of) {
  for (const auto& host : hosts_) {
    for (Region* const region : host->regions) {
      const void* const at = reinterpret_cast<void*>(region->start);  // NOLINT
      if (!region->of_gpu || !of(at)) continue;
      for (const auto& [offset, bytes] : region->unflushed) {
        std::memcpy(region->memory + offset, region->arrived.data() + offset,
                    bytes);
      }
      region->unflushed.clear();
    }
  }
}

void Fabric::Posted(Pair* pair) {
  Send& send = pair->sends.back();
  send.due = Now() + options.delay + Late();
  send.packets = Packets(*pair, send);
  if (!pair->moving) Again(pair, send.due - Now());
}

void Fabric::Again(Pair* pair, Clock::Time after) {
  pair->moving = true;
  Event event;
  event.due = Now() + std::max(after, Clock::Time(0));
  event.pair = pair->identity;
  Schedule(event);
}

void Fabric::Deliver(Pair* pair) {
  if (pair->now != IBV_QPS_RTS || pair->delivered == pair->sends.size()) return;
  Send& send = pair->sends[pair->delivered];
  pair->order.Acquire(&send.posted);
  if (send.fails != IBV_WC_SUCCESS) {
    Fail(pair, send.fails);
  } else if (!CanSend(*pair)) {
    Fail(pair, IBV_WC_LOC_QP_OP_ERR);
  } else if (!Readable(*pair, send)) {
    Fail(pair, IBV_WC_LOC_PROT_ERR);
  } else if (Pair* const peer = Peer(pair);
             peer == nullptr || (!send.started && Chance(options.lost))) {
    Retry(pair);
  } else if (PacketsDiffer(*pair, *peer, send)) {
    Refuse(pair, peer, IBV_WC_REM_INV_REQ_ERR);
  } else {
    DeliverTo(peer, pair, &send);
  }
}

void Fabric::DeliverTo(Pair* peer, Pair* pair, Send* send) {
  if (!IsWrite(*send)) {
    if (peer->receives.empty()) return NotReady(pair, peer);
    const ibv_wc_status status = Scatter(pair, peer, *send);
    if (status != IBV_WC_SUCCESS) return Refuse(pair, peer, status);
    send->packets = 0;
  } else if (send->bytes == 0) {
    send->packets = 0;  // There is no key to look at.
  } else if (send->packets > 0) {
    Write(pair, peer, send);
    if (pair->now != IBV_QPS_RTS) return;  // It was refused.
    if (send->packets > 0) return Again(pair, Late());
  }
  const bool needs_receive = send->wr.opcode != IBV_WR_RDMA_WRITE;
  if (needs_receive && !UseReceive(pair, peer, *send)) {
    return NotReady(pair, peer);
  }
  Delivered(pair, peer);
}

// Some of the packets, the last ones first.
void Fabric::Write(Pair* pair, Pair* peer, Send* send) {
  if ((peer->set.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) == 0) {
    ++peer->on->host->stats.refused_writes;
    return Refuse(pair, peer, IBV_WC_REM_INV_REQ_ERR);
  }
  Region* region = nullptr;
  char* const memory =
      Remote(*peer, send->wr.wr.rdma.rkey, send->wr.wr.rdma.remote_addr,
             send->bytes, &region);
  if (memory == nullptr) {
    ++peer->on->host->stats.refused_writes;
    return Refuse(pair, peer, IBV_WC_REM_ACCESS_ERR);
  }
  send->started = true;
  const std::uint64_t packet = PacketBytes(*pair);
  const std::uint64_t end = std::min(send->bytes, send->packets * packet);
  send->packets -= 1 + Random() % send->packets;
  const std::uint64_t begin = send->packets * packet;
  pair->order.Acquire(&region->registered);
  char* to = memory + begin;
  if (region->of_gpu) {
    const auto offset = static_cast<std::size_t>(to - region->memory);
    to = region->arrived.data() + offset;
    region->unflushed.emplace_back(offset, end - begin);
    peer->on->host->stats.gpu_bytes_written += end - begin;
  }
  Gather(pair, *send, begin, to, end - begin);
  pair->order.Release(&region->copied);
  pair->order.Release(&peer->copied);
  pair->order.Release(&pair->copied);
}

ibv_wc_status Fabric::Scatter(Pair* pair, Pair* peer, const Send& send) {
  const Receive receive = peer->receives.front();
  std::uint64_t room = 0;
  bool allowed = true;
  Region* region = nullptr;
  for (int i = 0; i < receive.count; ++i) {
    const ibv_sge& sge = receive.sges[static_cast<std::size_t>(i)];
    room += sge.length;
    allowed &= Local(*peer, sge, IBV_ACCESS_LOCAL_WRITE, &region) != nullptr;
  }
  if (!allowed || room < send.bytes) {
    peer->receives.pop_front();
    ibv_wc wc = {};
    wc.status = allowed ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_PROT_ERR;
    Complete(peer, receive, wc, true);
    return allowed ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR;
  }
  pair->order.Acquire(&peer->receives.front().posted);
  std::uint64_t done = 0;
  for (int i = 0; done < send.bytes; ++i) {
    const ibv_sge& sge = receive.sges[static_cast<std::size_t>(i)];
    const std::uint64_t bytes =
        std::min<std::uint64_t>(sge.length, send.bytes - done);
    char* const to = Local(*peer, sge, IBV_ACCESS_LOCAL_WRITE, &region);
    Gather(pair, send, done, to, bytes);
    pair->order.Release(&region->copied);
    done += bytes;
  }
  pair->order.Release(&peer->copied);
  pair->order.Release(&pair->copied);
  return IBV_WC_SUCCESS;
}

bool Fabric::UseReceive(Pair* pair, Pair* peer, const Send& send) {
  if (peer->receives.empty()) return false;
  const Receive receive = peer->receives.front();
  peer->receives.pop_front();
  ibv_wc wc = {};
  wc.opcode = IsWrite(send) ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
  wc.byte_len = static_cast<std::uint32_t>(send.bytes);
  if (HasImmediate(send)) {
    wc.wc_flags = IBV_WC_WITH_IMM;
    wc.imm_data = send.wr.imm_data;
  }
  // A write without bytes copies nothing, but comes after its posting, too.
  pair->order.Release(&pair->copied);
  peer->order.Acquire(&pair->copied);
  Complete(peer, receive, wc, (send.wr.send_flags & IBV_SEND_SOLICITED) != 0);
  return true;
}

void Fabric::Delivered(Pair* pair, Pair* peer) {
  if (pair->now != IBV_QPS_RTS)
    return;  // Its own queue was full, and broke it.
  Send& send = pair->sends[pair->delivered++];
  const std::uint32_t packets = Packets(*pair, send);
  pair->send_psn += packets;
  peer->expected_psn += packets;
  ++pair->on->host->stats.delivered;
  SendAck(pair, send.sequence, 0);
  if (pair->delivered < pair->sends.size()) {
    Again(pair, pair->sends[pair->delivered].due - Now());
  }
}

void Fabric::Retry(Pair* pair) {
  if (pair->set.timeout == 0) return;  // It waits for ever.
  Send& send = pair->sends[pair->delivered];
  if (pair->set.retry_cnt != 7 && send.tries == pair->set.retry_cnt) {
    // The last answer is awaited, too.
    send.fails = IBV_WC_RETRY_EXC_ERR;
  } else {
    ++send.tries;
    ++pair->on->host->stats.retries;
  }
  Again(pair, TimeOut(*pair));
}

void Fabric::NotReady(Pair* pair, Pair* peer) {
  Send& send = pair->sends[pair->delivered];
  ++pair->on->host->stats.rnr;
  const int tries = send.rnr_tries++;
  if (options.rnr_is_a_problem && tries == 0) {
    Problem(StrCat("host ", pair->on->host->index, " sends to host ",
                   peer->on->host->index, ", which has posted no receive"));
  }
  if (options.rnr_ends_long_writes && Packets(*pair, send) > 1) {
    return Refuse(pair, peer, IBV_WC_REM_INV_REQ_ERR);
  }
  if (pair->set.rnr_retry != 7 && tries == pair->set.rnr_retry) {
    return Fail(pair, IBV_WC_RNR_RETRY_EXC_ERR);
  }
  Again(pair, RnrTimer(peer->set.min_rnr_timer));
}

void Fabric::Refuse(Pair* pair, Pair* peer, ibv_wc_status status) {
  if (options.access_events) {
    ibv_async_event event = {};
    event.event_type = status == IBV_WC_REM_ACCESS_ERR ? IBV_EVENT_QP_ACCESS_ERR
                                                       : IBV_EVENT_QP_REQ_ERR;
    event.element.qp = peer;
    Raise(peer->in->on, event);
  }
  Fail(pair, status);
  Break(peer);
}

// The first that was not delivered has failed; those before it have not.
void Fabric::Fail(Pair* pair, ibv_wc_status status) {
  const std::uint64_t failed = pair->sends[pair->delivered].sequence;
  if (pair->delivered > 0) Acknowledge(pair, failed - 1);
  if (pair->now != IBV_QPS_RTS) return;
  const Send send = pair->sends.front();
  pair->sends.pop_front();
  Complete(pair, send, status);
  Break(pair);
}

void Fabric::Break(Pair* pair) {
  if (pair->now == IBV_QPS_ERR || pair->now == IBV_QPS_RESET) return;
  pair->now = IBV_QPS_ERR;
  Changed();
  pair->order.Acquire(&pair->copied);
  pair->delivered = 0;
  while (!pair->sends.empty()) {
    const Send send = pair->sends.front();
    pair->sends.pop_front();
    Complete(pair, send, IBV_WC_WR_FLUSH_ERR);
  }
  while (!pair->receives.empty()) {
    const Receive receive = pair->receives.front();
    pair->receives.pop_front();
    ibv_wc wc = {};
    wc.status = IBV_WC_WR_FLUSH_ERR;
    Complete(pair, receive, wc, true);
  }
}

void Fabric::Acknowledge(Pair* pair, std::uint64_t sequence) {
  while (pair->delivered > 0 && pair->sends.front().sequence <= sequence) {
    const Send send = std::move(pair->sends.front());
    pair->sends.pop_front();
    --pair->delivered;
    if (send.signalled) Complete(pair, send, IBV_WC_SUCCESS);
  }
}

void Fabric::SendAck(Pair* pair, std::uint64_t sequence, int tries) {
  Event event;
  event.pair = pair->identity;
  event.sequence = sequence;
  event.tries = tries;
  if (pair->set.timeout != 0 && Chance(options.lost_acks)) {
    event.what = What::kLostAck;
    event.due = Now() + TimeOut(*pair);
  } else {
    event.what = What::kAcknowledge;
    event.due = Now() + options.delay + Late();
  }
  Schedule(event);
}

// What was sent is sent again, unless a later acknowledgement has come; its
// receiver has had it and drops it. The sender must still be able to read it.
void Fabric::LostAck(Pair* pair, const Event& event) {
  if (pair->delivered == 0 || pair->sends.front().sequence > event.sequence) {
    return;
  }
  const bool given_up =
      pair->set.retry_cnt != 7 && event.tries == pair->set.retry_cnt;
  if (given_up || !Readable(*pair, pair->sends.front())) {
    pair->delivered = 0;
    return Fail(pair, given_up ? IBV_WC_RETRY_EXC_ERR : IBV_WC_LOC_PROT_ERR);
  }
  ++pair->on->host->stats.retries;
  if (Pair* const peer = pair->peer_of == topology_ ? pair->peer : nullptr;
      peer != nullptr) {
    ++peer->on->host->stats.duplicates;
  }
  SendAck(pair, event.sequence, event.tries + 1);
}

}  // namespace gradientflow::fake_verbs
