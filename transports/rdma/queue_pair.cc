#include "transports/rdma/queue_pair.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

// 7 would mean for ever: for Soft-RoCE as a count of retries, and for all as a
// count of those after "receiver not ready", which credits rule out anyhow.
constexpr int kRetries = 6;
// In units of the specification: 0.64 ms.
constexpr int kReceiverNotReadyTimer = 12;
constexpr int kHopLimit = 64;
// Receives are posted again by the batch.
constexpr int kReceivesAtOnce = 16;

// The largest time-out of a packet with which all tries fit in `seconds`. The
// card waits 4.096 us * 2^exponent, and for ever if that is 0.
std::uint8_t TimeoutExponent(double seconds) {
  constexpr double kUnit = 4.096e-6;
  int exponent = 1;
  while (exponent < 31 &&
         (kRetries + 1) * kUnit * static_cast<double>(2ULL << exponent) <=
             seconds) {
    ++exponent;
  }
  return static_cast<std::uint8_t>(exponent);
}

ibv_mtu MtuOf(int bytes) {
  int code = IBV_MTU_256;
  while (code < IBV_MTU_4096 && (256 << code) <= bytes) ++code;
  return static_cast<ibv_mtu>(code);
}

}  // namespace

QueuePair::QueuePair(Rail* rail, Owner* owner, int receives)
    : rail_(rail),
      owner_(owner),
      receives_(receives + kReceivesAtOnce),
      requests_(kDepth) {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const bool last = i + 1 == requests_.size();
    Request& of = requests_[i];
    of.request.sg_list = of.pieces.data();
    of.request.next = last ? nullptr : &requests_[i + 1].request;
  }
}

int QueuePair::MostCompletions(int receives) {
  return kDepth + receives + kReceivesAtOnce;
}

Result<std::unique_ptr<QueuePair>> QueuePair::Create(Rail* rail, Owner* owner,
                                                     int receives) {
  std::unique_ptr<QueuePair> made(new QueuePair(rail, owner, receives));
  made->psn_ = std::random_device{}() & 0xFFFFFF;
  ibv_qp_init_attr init = {};
  init.send_cq = init.recv_cq = rail->cq();
  init.cap.max_send_wr = kDepth;
  init.cap.max_recv_wr = static_cast<std::uint32_t>(made->receives_);
  init.cap.max_send_sge = kMostPutPieces;
  // Receives have no buffer: what arrives was written where it belongs.
  init.cap.max_recv_sge = 1;
  init.qp_type = IBV_QPT_RC;
  made->pair_ = rail->verbs().create_qp(rail->pd(), &init);
  if (made->pair_ == nullptr) {
    const int error = errno;
    return Status(StatusCode::kResourceExhausted,
                  StrCat(rail->name(),
                         ": cannot make a queue pair: ", std::strerror(error),
                         error == ENOMEM ? MemlockRemedy() : ""));
  }
  made->index_ = rail->Add(made.get());
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = 0;
  attributes.port_num = static_cast<std::uint8_t>(rail->port().number);
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  GF_RETURN_IF_ERROR(made->Modify(
      &attributes,
      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
      "INIT"));
  GF_RETURN_IF_ERROR(made->PostReceives(made->receives_));
  return made;
}

QueuePair::~QueuePair() {
  if (destroyed_ != nullptr) *destroyed_ = true;
  if (pair_ == nullptr) return;
  rail_->Remove(index_);
  rail_->verbs().destroy_qp(pair_);
}

RdmaAddress QueuePair::address() const {
  RdmaAddress mine;
  mine.number = pair_->qp_num;
  mine.psn = psn_;
  mine.lid = rail_->port().lid;
  mine.mtu = rail_->port().mtu;
  return mine;
}

Status QueuePair::Modify(ibv_qp_attr* attributes, int mask, const char* to) {
  const int error = rail_->verbs().modify_qp(pair_, attributes, mask);
  if (error == 0) return Status();
  return Status(StatusCode::kUnavailable,
                StrCat(rail_->name(), ": the queue pair cannot go to ", to,
                       ": ", std::strerror(error)));
}

ibv_qp_attr QueuePair::PathTo(const RdmaGid& mine,
                              const RdmaAddress& peer) const {
  ibv_qp_attr to = {};
  to.qp_state = IBV_QPS_RTR;
  to.path_mtu = MtuOf(std::min(peer.mtu, rail_->port().mtu));
  to.dest_qp_num = peer.number;
  to.rq_psn = peer.psn;
  to.max_dest_rd_atomic = 0;  // Nobody reads.
  to.min_rnr_timer = kReceiverNotReadyTimer;
  to.ah_attr.port_num = static_cast<std::uint8_t>(rail_->port().number);
  to.ah_attr.dlid = peer.lid;
  to.ah_attr.is_global =
      rail_->port().ethernet || peer.lid == 0 || !mine.is_link_local();
  std::copy(peer.gid.bytes.begin(), peer.gid.bytes.end(),
            to.ah_attr.grh.dgid.raw);
  to.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(mine.index);
  to.ah_attr.grh.hop_limit = kHopLimit;
  to.ah_attr.grh.traffic_class =
      static_cast<std::uint8_t>(rail_->args().traffic_class);
  return to;
}

Status QueuePair::Connect(const RdmaGid& mine, const RdmaAddress& peer) {
  mine_ = mine;
  ibv_qp_attr to_receive = PathTo(mine, peer);
  GF_RETURN_IF_ERROR(Modify(
      &to_receive,
      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
          IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
      "RTR"));
  ibv_qp_attr to_send = {};
  to_send.qp_state = IBV_QPS_RTS;
  to_send.timeout = TimeoutExponent(rail_->args().retry_seconds);
  to_send.retry_cnt = to_send.rnr_retry = kRetries;
  to_send.sq_psn = psn_;
  to_send.max_rd_atomic = 0;
  return Modify(&to_send,
                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                    IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                "RTS");
}

Status QueuePair::PostReceives(int count) {
  std::array<ibv_recv_wr, kReceivesAtOnce> requests;
  while (count > 0) {
    const int now = std::min(count, kReceivesAtOnce);
    for (int i = 0; i < now; ++i) {
      requests[static_cast<std::size_t>(i)] = {};
      requests[static_cast<std::size_t>(i)].wr_id =
          kReceiveBit | std::uint64_t{index_} << kIndexShift;
      requests[static_cast<std::size_t>(i)].next =
          i + 1 < now ? &requests[static_cast<std::size_t>(i) + 1] : nullptr;
    }
    ibv_recv_wr* bad = nullptr;
    const int error = rail_->verbs().post_recv(pair_, requests.data(), &bad);
    if (error != 0) {
      return Status(StatusCode::kUnavailable,
                    StrCat(rail_->name(), ": receives cannot be posted: ",
                           std::strerror(error)));
    }
    count -= now;
  }
  return Status();
}

void QueuePair::Write(const WriteArgs& args) {
  assert(room() > 0);
  if (!dirty()) rail_->SetDirty(this);
  ++written_;
  Request& to = requests_[batched_++];
  to.pieces = args.pieces;
  ibv_send_wr& request = to.request;
  request.wr_id = std::uint64_t{index_} << kIndexShift |
                  static_cast<std::uint32_t>(written_);
  request.num_sge = args.count;
  request.opcode =
      args.immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  request.imm_data = htonl(args.immediate.value_or(0));
  request.wr.rdma.remote_addr = args.there.address;
  request.wr.rdma.rkey = args.there.key;
  if (args.cookie != 0) lent_[lent_end_++ % kDepth] = {written_, args.cookie};
}

// The last request ends the list and is signalled, but only in this batch.
void QueuePair::Post() {
  ibv_send_wr& last = requests_[std::exchange(batched_, 0) - 1].request;
  ibv_send_wr* const next = std::exchange(last.next, nullptr);
  last.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  const int error = broken_ ? 0
                            : rail_->verbs().post_send(
                                  pair_, &requests_.front().request, &bad);
  last.next = next;
  last.send_flags = 0;
  if (error != 0) {
    Break(Status(StatusCode::kUnavailable,
                 StrCat("writes cannot be posted: ", std::strerror(error))));
  }
}

void QueuePair::OnCompletion(const ibv_wc& completion) {
  if (broken_) return;
  // Only the first error has a cause. Work requests behind it are flushed.
  if (completion.status == IBV_WC_WR_FLUSH_ERR) {
    flushed_ = true;
  } else if (completion.status != IBV_WC_SUCCESS) {
    OnError(completion);
  } else if ((completion.wr_id & kReceiveBit) != 0) {
    OnReceived(completion);
  } else {
    OnSent(static_cast<std::uint32_t>(completion.wr_id));
  }
}

// If the device knows why, that says more.
void QueuePair::OnError(const ibv_wc& completion) {
  bool destroyed = false;
  destroyed_ = &destroyed;
  rail_->TakeAsyncEvents();
  if (destroyed) return;
  destroyed_ = nullptr;
  Break(Status(
      StatusCode::kUnavailable,
      StrCat((completion.wr_id & kReceiveBit) != 0 ? "a receive ended with "
                                                   : "a write ended with ",
             rail_->verbs().wc_status_str(completion.status), " (",
             static_cast<int>(completion.status), ", vendor ",
             completion.vendor_err, ")")));
}

// The owner may destroy this object within a callback, so nothing follows the
// last one that touches it.
void QueuePair::OnReceived(const ibv_wc& completion) {
  if (++received_ >= kReceivesAtOnce) {
    const Status posted = PostReceives(std::exchange(received_, 0));
    if (!posted.ok()) return Break(posted);
  }
  owner_->OnImmediate(ntohl(completion.imm_data), completion.byte_len);
}

// The owner may write more within a callback, but only as much as the
// completions that it has been told of have freed.
void QueuePair::OnSent(std::uint32_t low) {
  const std::uint64_t completed =
      completed_ + (low - static_cast<std::uint32_t>(completed_));
  bool destroyed = false;
  destroyed_ = &destroyed;
  while (lent_first_ < lent_end_ &&
         lent_[lent_first_ % kDepth].write <= completed) {
    const auto& lent = lent_[lent_first_++ % kDepth];
    completed_ = lent.write;
    owner_->OnWritten(lent.cookie);
    if (destroyed) return;
  }
  destroyed_ = nullptr;
  completed_ = completed;
}

void QueuePair::Break(const Status& why) {
  if (std::exchange(broken_, true)) return;
  owner_->OnBroken(
      Status(why.code(), StrCat(name_, " has failed: ", why.message())));
}

bool QueuePair::HasAddress(const RdmaPort& now) const {
  if (!mine_) return true;
  return now.lid == rail_->port().lid &&
         std::any_of(
             now.gids.begin(), now.gids.end(), [this](const RdmaGid& gid) {
               return gid.index == mine_->index && gid.bytes == mine_->bytes;
             });
}

}  // namespace gradientflow
