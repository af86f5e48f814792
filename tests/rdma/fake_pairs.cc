#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "gradientflow/base/str_cat.h"
#include "tests/rdma/fake_calls.h"
#include "tests/rdma/fake_fabric.h"

// Queue pairs, and how they come to be connected:
//
//   RESET -> INIT (port, rights) -> RTR (the peer: it receives) -> RTS (sends)
//
// and to ERR or RESET from all of them.
namespace gradientflow::fake_verbs {
namespace {

constexpr std::uint32_t kTwentyFourBits = (1 << 24) - 1;

struct Transition {
  ibv_qp_state from;
  ibv_qp_state to;
  int required;
  int optional;
};

// For reliable connections, of the specification (IBTA 1.4, 11.2.5.2).
constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT,
     IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0,
     IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
         IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
};

bool MaskFits(ibv_qp_state from, ibv_qp_state to, int mask) {
  const int rest = mask & ~IBV_QP_STATE;
  if (to == IBV_QPS_ERR || to == IBV_QPS_RESET) {
    return (rest & ~IBV_QP_CUR_STATE) == 0;
  }
  for (const Transition& known : kTransitions) {
    if (known.from != from || known.to != to) continue;
    return (rest & known.required) == known.required &&
           (rest & ~(known.required | known.optional)) == 0;
  }
  return false;
}

// Whether the pair's port has the address that it wants to send from.
bool AddressFits(const Pair& pair, const ibv_ah_attr& address) {
  const std::size_t port = address.port_num - 1U;
  if (address.port_num != pair.set.port_num) return false;
  const FakePort& is = pair.on->is.ports[port];
  if (address.is_global == 0) return !is.ethernet;
  // A message that may take no hop gets through no router.
  if (address.grh.hop_limit == 0) return false;
  return address.grh.sgid_index < is.gids.size() &&
         !is.gids[address.grh.sgid_index].address.empty();
}

bool ValuesFit(const Pair& pair, const ibv_qp_attr& wanted, int mask) {
  const auto has = [mask](int bit) { return (mask & bit) != 0; };
  constexpr unsigned kAccess =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
      IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  if (has(IBV_QP_CUR_STATE) && wanted.cur_qp_state != pair.now) return false;
  if (has(IBV_QP_PORT) &&
      (wanted.port_num < 1 || wanted.port_num > pair.on->is.ports.size())) {
    return false;
  }
  if (has(IBV_QP_PKEY_INDEX) && wanted.pkey_index != 0) return false;
  if (has(IBV_QP_ACCESS_FLAGS) && (wanted.qp_access_flags & ~kAccess) != 0) {
    return false;
  }
  if (has(IBV_QP_PATH_MTU) &&
      (wanted.path_mtu < IBV_MTU_256 ||
       wanted.path_mtu > pair.on->is.ports[pair.set.port_num - 1U].mtu)) {
    return false;
  }
  if (has(IBV_QP_AV) && !AddressFits(pair, wanted.ah_attr)) return false;
  if (has(IBV_QP_DEST_QPN) && wanted.dest_qp_num > kTwentyFourBits)
    return false;
  if (has(IBV_QP_RQ_PSN) && wanted.rq_psn > kTwentyFourBits) return false;
  if (has(IBV_QP_SQ_PSN) && wanted.sq_psn > kTwentyFourBits) return false;
  if (has(IBV_QP_TIMEOUT) && wanted.timeout > 31) return false;
  if (has(IBV_QP_RETRY_CNT) && wanted.retry_cnt > 7) return false;
  if (has(IBV_QP_RNR_RETRY) && wanted.rnr_retry > 7) return false;
  if (has(IBV_QP_MIN_RNR_TIMER) && wanted.min_rnr_timer > 31) return false;
  if (has(IBV_QP_MAX_QP_RD_ATOMIC) && wanted.max_rd_atomic > 16) return false;
  return !has(IBV_QP_MAX_DEST_RD_ATOMIC) || wanted.max_dest_rd_atomic <= 16;
}

void Keep(Pair* pair, const ibv_qp_attr& wanted, int mask) {
  ibv_qp_attr& set = pair->set;
  const auto keep = [mask](int bit, auto& to, const auto& from) {
    if ((mask & bit) != 0) to = from;
  };
  keep(IBV_QP_PORT, set.port_num, wanted.port_num);
  keep(IBV_QP_ACCESS_FLAGS, set.qp_access_flags, wanted.qp_access_flags);
  keep(IBV_QP_AV, set.ah_attr, wanted.ah_attr);
  keep(IBV_QP_PATH_MTU, set.path_mtu, wanted.path_mtu);
  keep(IBV_QP_DEST_QPN, set.dest_qp_num, wanted.dest_qp_num);
  keep(IBV_QP_RQ_PSN, pair->expected_psn, wanted.rq_psn);
  keep(IBV_QP_SQ_PSN, pair->send_psn, wanted.sq_psn);
  keep(IBV_QP_MIN_RNR_TIMER, set.min_rnr_timer, wanted.min_rnr_timer);
  keep(IBV_QP_TIMEOUT, set.timeout, wanted.timeout);
  keep(IBV_QP_RETRY_CNT, set.retry_cnt, wanted.retry_cnt);
  keep(IBV_QP_RNR_RETRY, set.rnr_retry, wanted.rnr_retry);
}

// Nothing of what it did before is told or goes on.
void Reset(Fabric* fabric, Pair* pair) GF_REQUIRES(fabric->mutex) {
  fabric->Forget(pair);
  fabric->Know(pair);
  pair->now = IBV_QPS_RESET;
  pair->set = {};
  pair->sends.clear();
  pair->receives.clear();
  pair->delivered = 0;
  pair->moving = false;
  pair->freed = pair->posted;
  pair->places_taken = 0;
}

bool CapFits(const FakeDevice& device, const ibv_qp_cap& cap) {
  const auto entries = static_cast<std::uint32_t>(device.max_queue_entries);
  const auto sges =
      static_cast<std::uint32_t>(std::min(device.max_sge, kMostSge));
  return cap.max_send_wr <= entries && cap.max_recv_wr <= entries &&
         cap.max_send_sge <= sges && cap.max_recv_sge <= sges &&
         cap.max_inline_data <= device.max_inline_bytes;
}

}  // namespace

ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  auto* const domain = static_cast<Domain*>(pd);
  Device* const device = domain->on->on;
  Fabric* const fabric = device->host->fabric;
  const HiddenLock lock(fabric->mutex);
  errno = FaultOf(device, "create_qp");
  if (errno != 0) return nullptr;
  if (attributes->qp_type != IBV_QPT_RC || attributes->srq != nullptr) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  if (attributes->send_cq == nullptr || attributes->recv_cq == nullptr ||
      !CapFits(device->is, attributes->cap)) {
    errno = EINVAL;
    return nullptr;
  }
  auto* const pair = new Pair();
  pair->context = domain->on;
  pair->qp_context = attributes->qp_context;
  pair->pd = domain;
  pair->send_cq = attributes->send_cq;
  pair->recv_cq = attributes->recv_cq;
  pair->qp_type = attributes->qp_type;
  pair->qp_num = device->next_number++;
  pair->on = device;
  pair->in = domain;
  pair->sends_to = static_cast<Queue*>(attributes->send_cq);
  pair->receives_to = static_cast<Queue*>(attributes->recv_cq);
  pair->cap = attributes->cap;
  pair->signals_all = attributes->sq_sig_all != 0;
  ++domain->children;
  ++pair->sends_to->children;
  ++pair->receives_to->children;
  device->pairs[pair->qp_num] = pair;
  device->host->pairs.insert(pair);
  fabric->Know(pair);
  return pair;
}

int ModifyQp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  auto* const pair = static_cast<Pair*>(qp);
  Fabric* const fabric = pair->on->host->fabric;
  const HiddenLock lock(fabric->mutex);
  if (const int error = FaultOf(pair->on, "modify_qp")) return error;
  const ibv_qp_state to =
      (mask & IBV_QP_STATE) != 0 ? attributes->qp_state : pair->now;
  if (!MaskFits(pair->now, to, mask) || !ValuesFit(*pair, *attributes, mask)) {
    return EINVAL;
  }
  Acquire(&pair->copied);
  if (to == IBV_QPS_ERR) {
    fabric->Break(pair);
    pair->now = IBV_QPS_ERR;
  } else if (to == IBV_QPS_RESET) {
    Reset(fabric, pair);
  } else {
    Keep(pair, *attributes, mask);
    pair->now = to;
  }
  pair->state = to;
  fabric->Changed();
  return 0;
}

int DestroyQp(ibv_qp* qp) {
  auto* const pair = static_cast<Pair*>(qp);
  Host* const host = pair->on->host;
  Fabric* const fabric = host->fabric;
  const HiddenLock lock(fabric->mutex);
  if (const int error = FaultOf(pair->on, "destroy_qp")) return error;
  Acquire(&pair->copied);
  if (fabric->options.drop_completions_of_destroyed) {
    for (Queue* const queue : {pair->sends_to, pair->receives_to}) {
      std::erase_if(queue->entries, [pair](const Completion& completion) {
        return completion.pair == pair->identity;
      });
    }
  }
  fabric->Forget(pair);
  pair->on->pairs.erase(pair->qp_num);
  --pair->in->children;
  --pair->sends_to->children;
  --pair->receives_to->children;
  host->pairs.erase(pair);
  delete pair;
  return 0;
}

}  // namespace gradientflow::fake_verbs
