#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tests/rdma/fake_calls.h"
#include "tests/rdma/fake_fabric.h"

// What a rank posts: requests are checked, copied, and put in the queues of the
// pair. Bytes are read later, except those that go inline.
namespace gradientflow::fake_verbs {
namespace {

bool IsSupported(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM ||
         opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
}

std::uint64_t BytesOf(const ibv_send_wr& wr) {
  std::uint64_t bytes = 0;
  for (int i = 0; i < wr.num_sge; ++i) bytes += wr.sg_list[i].length;
  return bytes;
}

// An errno if the request cannot be queued.
int Unfit(const Pair& pair, const ibv_send_wr& wr) {
  const bool sends = pair.now == IBV_QPS_RTS || pair.now == IBV_QPS_ERR;
  if (!sends || !IsSupported(wr.opcode)) return EINVAL;
  if (wr.num_sge < 0 ||
      static_cast<std::uint32_t>(wr.num_sge) > pair.cap.max_send_sge) {
    return EINVAL;
  }
  const std::uint64_t bytes = BytesOf(wr);
  const bool inlined = (wr.send_flags & IBV_SEND_INLINE) != 0;
  const FakePort& port = pair.on->is.ports[pair.set.port_num - 1U];
  if (bytes > port.max_message_bytes) return EINVAL;
  if (inlined && bytes > pair.cap.max_inline_data) return EINVAL;
  return pair.posted - pair.freed == pair.cap.max_send_wr ? ENOMEM : 0;
}

void CopyInline(const ibv_send_wr& wr, Send* send) {
  for (int i = 0; i < wr.num_sge; ++i) {
    const auto* const from =
        reinterpret_cast<const char*>(wr.sg_list[i].addr);  // The caller's own.
    send->inlined.insert(send->inlined.end(), from,
                         from + wr.sg_list[i].length);
  }
}

void Count(const Send& send, FakeVerbsStats* stats) {
  switch (send.wr.opcode) {
    case IBV_WR_RDMA_WRITE:
      ++stats->writes;
      break;
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      ++stats->writes_with_imm;
      break;
    default:
      ++stats->sends;
  }
  stats->bytes += send.bytes;
  if (send.signalled) ++stats->signalled;
  if ((send.wr.send_flags & IBV_SEND_INLINE) != 0) ++stats->inlined;
}

// The status with which the test wants the next message to end.
ibv_wc_status MessageFault(Host* host) {
  ibv_wc_status status = IBV_WC_SUCCESS;
  for (auto& [in, fails] : host->message_faults) {
    if (--in == 0) status = fails;
  }
  std::erase_if(host->message_faults,
                [](const auto& fault) { return fault.first == 0; });
  return status;
}

void Enqueue(Fabric* fabric, Pair* pair, const ibv_send_wr& wr)
    GF_REQUIRES(fabric->mutex) {
  Send& send = pair->sends.emplace_back();
  send.wr = wr;
  send.wr.next = nullptr;
  send.bytes = BytesOf(wr);
  std::copy_n(wr.sg_list, wr.num_sge, send.sges.begin());
  send.signalled =
      pair->signals_all || (wr.send_flags & IBV_SEND_SIGNALED) != 0;
  send.sequence = pair->posted++;
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) CopyInline(wr, &send);
  Host* const host = pair->on->host;
  if (!host->message_faults.empty()) send.fails = MessageFault(host);
  if (fabric->Chance(fabric->options.failing)) {
    send.fails = IBV_WC_RETRY_EXC_ERR;
  }
  Count(send, &host->stats);
  pair->on->posted_bytes += send.bytes;
  Release(&send.posted);
  if (pair->now == IBV_QPS_RTS) return fabric->Posted(pair);
  const Send flushed = std::move(send);
  pair->sends.pop_back();
  fabric->Complete(pair, flushed, IBV_WC_WR_FLUSH_ERR);
}

}  // namespace

int PostSend(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) {
  auto* const pair = static_cast<Pair*>(qp);
  Fabric* const fabric = pair->on->host->fabric;
  const HiddenLock lock(fabric->mutex);
  ++pair->on->host->stats.post_calls;
  int error = FaultOf(pair->on, "post_send");
  for (ibv_send_wr* wr = first; wr != nullptr; wr = wr->next) {
    if (error == 0) error = Unfit(*pair, *wr);
    if (error != 0) {
      *bad = wr;
      break;
    }
    Enqueue(fabric, pair, *wr);
  }
  fabric->Pump();
  return error;
}

int PostRecv(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad) {
  auto* const pair = static_cast<Pair*>(qp);
  Fabric* const fabric = pair->on->host->fabric;
  const HiddenLock lock(fabric->mutex);
  int error = FaultOf(pair->on, "post_recv");
  for (ibv_recv_wr* wr = first; wr != nullptr; wr = wr->next) {
    if (error == 0 &&
        (pair->now == IBV_QPS_RESET || wr->num_sge < 0 ||
         static_cast<std::uint32_t>(wr->num_sge) > pair->cap.max_recv_sge)) {
      error = EINVAL;
    }
    if (error == 0 && pair->places_taken == pair->cap.max_recv_wr) {
      error = ENOMEM;
    }
    if (error != 0) {
      *bad = wr;
      break;
    }
    ++pair->places_taken;
    ++pair->on->host->stats.receives;
    Receive& receive = pair->receives.emplace_back();
    receive.wr_id = wr->wr_id;
    receive.count = wr->num_sge;
    std::copy_n(wr->sg_list, wr->num_sge, receive.sges.begin());
    Release(&receive.posted);
    if (pair->now != IBV_QPS_ERR) continue;
    const Receive flushed = receive;
    pair->receives.pop_back();
    ibv_wc wc = {};
    wc.status = IBV_WC_WR_FLUSH_ERR;
    fabric->Complete(pair, flushed, wc, true);
  }
  return error;
}

}  // namespace gradientflow::fake_verbs
