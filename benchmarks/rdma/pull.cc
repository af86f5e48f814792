#include "benchmarks/rdma/pull.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "benchmarks/lib/must.h"
#include "benchmarks/rdma/parts.h"
#include "gradientflow/base/str_cat.h"
#include "transports/rdma/choose.h"
#include "transports/rdma/verbs_api.h"

namespace gradientflow::benchmarks {
namespace {

// A rank has at most a read, a write and a notice under way to a peer.
constexpr int kRequests = 8;
constexpr int kReceives = 8;
constexpr std::uint8_t kReads = 1;
// 0.27 s for an acknowledgement, and as many tries.
constexpr std::uint8_t kTimeoutExponent = 16;
constexpr std::uint8_t kRetries = 6;
constexpr std::uint8_t kNotReadyTimer = 12;  // 0.64 ms.
constexpr int kCompletionsAtOnce = 16;

void Check(int error, const char* what) {
  if (error == 0) return;
  throw std::runtime_error(StrCat(what, ": ", std::strerror(error)));
}

}  // namespace

PullRank::PullRank(const std::string& port, std::size_t rank, std::size_t ranks,
                   std::size_t floats)
    : rank_(rank),
      floats_(floats),
      rail_(OpenPort(port, ranks, kReceives)),
      memory_(Must(CardMemory::Map(2 * floats * sizeof(float)))),
      ends_(ranks) {
  const VerbsApi& verbs = rail_->verbs();
  const BufferView memory = {memory_.data(), memory_.bytes(), {}};
  ibv_mr* const mr =
      verbs.reg_mr(rail_->pd(), memory.data, memory.bytes,
                   reinterpret_cast<std::uintptr_t>(memory.data),
                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                       IBV_ACCESS_REMOTE_READ);
  Check(mr == nullptr ? errno : 0, "registering the pool");
  registration_ = Registration(verbs, mr, memory);
  pool_ = reinterpret_cast<float*>(memory_.data());
  staging_ = pool_ + floats;
  cq_ = verbs.create_cq(rail_->pd()->context,
                        static_cast<int>(ranks) * (kRequests + kReceives),
                        nullptr, nullptr, 0);
  Check(cq_ == nullptr ? errno : 0, "making a completion queue");
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    if (peer != rank) MakePair(peer);
  }
}

PullRank::~PullRank() {
  const VerbsApi& verbs = rail_->verbs();
  for (const End& end : ends_) {
    if (end.pair != nullptr) verbs.destroy_qp(end.pair);
  }
  if (cq_ != nullptr) verbs.destroy_cq(cq_);
}

void PullRank::MakePair(std::size_t peer) {
  ibv_qp_init_attr init = {};
  init.send_cq = init.recv_cq = cq_;
  init.cap.max_send_wr = kRequests;
  init.cap.max_recv_wr = kReceives;
  init.cap.max_send_sge = init.cap.max_recv_sge = 1;
  init.qp_type = IBV_QPT_RC;
  init.sq_sig_all = 1;
  const VerbsApi& verbs = rail_->verbs();
  ibv_qp* const pair = verbs.create_qp(rail_->pd(), &init);
  Check(pair == nullptr ? errno : 0, "making a queue pair");
  ends_[peer].pair = pair;
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = static_cast<std::uint8_t>(rail_->port().number);
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  Check(verbs.modify_qp(pair, &attributes,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                            IBV_QP_ACCESS_FLAGS),
        "a queue pair, to INIT");
  for (int i = 0; i < kReceives; ++i) PostReceive(peer);
}

// Both ends begin with packet 0, as they are made and gone together.
void PullRank::Link(PullRank& other) {
  const auto& mine = rail_->port().gids;
  const auto& theirs = other.rail_->port().gids;
  const auto match = MatchGids(mine, theirs);
  if (!match) throw std::runtime_error("no address fits");
  End& end = ends_[other.rank_];
  end.pool = other.pool_;
  end.key = other.registration_.remote_key();
  ibv_qp_attr to = {};
  to.qp_state = IBV_QPS_RTR;
  to.path_mtu = IBV_MTU_1024;
  to.dest_qp_num = other.ends_[rank_].pair->qp_num;
  to.max_dest_rd_atomic = kReads;
  to.min_rnr_timer = kNotReadyTimer;
  to.ah_attr.port_num = static_cast<std::uint8_t>(rail_->port().number);
  to.ah_attr.is_global = 1;
  const RdmaGid& gid = theirs[match->second];
  std::copy(gid.bytes.begin(), gid.bytes.end(), to.ah_attr.grh.dgid.raw);
  to.ah_attr.grh.sgid_index =
      static_cast<std::uint8_t>(mine[match->first].index);
  to.ah_attr.grh.hop_limit = 64;
  const VerbsApi& verbs = rail_->verbs();
  Check(verbs.modify_qp(end.pair, &to,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                            IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
        "a queue pair, to RTR");
  to = {};
  to.qp_state = IBV_QPS_RTS;
  to.timeout = kTimeoutExponent;
  to.retry_cnt = to.rnr_retry = kRetries;
  to.max_rd_atomic = kReads;
  Check(verbs.modify_qp(end.pair, &to,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                            IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                            IBV_QP_MAX_QP_RD_ATOMIC),
        "a queue pair, to RTS");
}

void PullRank::PostReceive(std::size_t peer) {
  ibv_recv_wr request = {};
  request.wr_id = peer;
  ibv_recv_wr* bad = nullptr;
  Check(rail_->verbs().post_recv(ends_[peer].pair, &request, &bad),
        "posting a receive");
}

void PullRank::Move(ibv_wr_opcode what, std::size_t peer, float* here,
                    std::size_t begin) {
  const std::size_t bytes = floats_ / ends_.size() * sizeof(float);
  ibv_sge piece = {reinterpret_cast<std::uintptr_t>(here),
                   static_cast<std::uint32_t>(bytes),
                   registration_.local_key()};
  ibv_send_wr request = {};
  request.opcode = what;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.wr.rdma.remote_addr =
      reinterpret_cast<std::uintptr_t>(ends_[peer].pool + begin);
  request.wr.rdma.rkey = ends_[peer].key;
  Post(peer, request);
}

void PullRank::Notify(std::size_t peer) {
  ibv_send_wr request = {};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  Post(peer, request);
}

void PullRank::Post(std::size_t peer, ibv_send_wr request) {
  ibv_send_wr* bad = nullptr;
  Check(rail_->verbs().post_send(ends_[peer].pair, &request, &bad),
        "posting a request");
  ++under_way_;
}

void PullRank::Poll() {
  std::array<ibv_wc, kCompletionsAtOnce> completions;
  const int count =
      rail_->verbs().poll_cq(cq_, kCompletionsAtOnce, completions.data());
  Check(count < 0 ? EIO : 0, "polling");
  for (int i = 0; i < count; ++i) {
    const ibv_wc& one = completions[static_cast<std::size_t>(i)];
    if (one.status != IBV_WC_SUCCESS) {
      throw std::runtime_error(
          StrCat("a request: ", rail_->verbs().wc_status_str(one.status)));
    }
    if (one.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
      ++notices_;
      PostReceive(static_cast<std::size_t>(one.wr_id));
    } else {
      --under_way_;
    }
  }
  if (count == 0) ::sched_yield();
}

void PullRank::AwaitCompletions() {
  while (under_way_ > 0) Poll();
}

void PullRank::AwaitNotices(std::size_t count) {
  while (notices_ < count) Poll();
  notices_ -= count;
}

void PullRank::Synchronise() {
  if (rank_ != 0) {
    Notify(0);
    AwaitNotices(1);
    return;
  }
  AwaitNotices(ends_.size() - 1);
  for (std::size_t peer = 1; peer < ends_.size(); ++peer) Notify(peer);
}

void PullRank::Allreduce() {
  const std::size_t ranks = ends_.size();
  const std::size_t block = floats_ / ranks;
  const std::size_t mine = rank_ * block;
  Synchronise();
  std::vector<const void*> parts(ranks, pool_ + mine);
  for (std::size_t hop = 1; hop < ranks; ++hop) {
    const std::size_t from = (rank_ + hop) % ranks;
    parts[from] = staging_ + from * block;
    Move(IBV_WR_RDMA_READ, from, staging_ + from * block, mine);
  }
  AwaitCompletions();
  SumParts(parts, rank_, pool_ + mine, block);
  for (std::size_t hop = 1; hop < ranks; ++hop) {
    Move(IBV_WR_RDMA_WRITE, (rank_ + hop) % ranks, pool_ + mine, mine);
  }
  AwaitCompletions();
  Synchronise();
}

}  // namespace gradientflow::benchmarks
